// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A model's tensors over several safetensors files with an index, as `save_model` of Accelerate
// lays them out. Comes after safetensors.hpp, which writes each file. Includes of LibTorch only the
// tensor.
#pragma once

#include <accel/checkpoint/safetensors.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

namespace accel {

struct ShardOptions {
  std::uint64_t max_shard_size =
      10'000'000'000;          ///< bytes of tensors a file; a larger tensor has a file of its own
  std::string stem = "model";  ///< of the file names
};

/// Writes `<stem>.safetensors`, or, beyond the limit, `<stem>-00001-of-0000N.safetensors` and
/// `<stem>.safetensors.index.json`. When the new files are whole, those of an earlier save that are
/// not among them are removed. Local; one rank calls it.
void save_safetensors_sharded(const std::filesystem::path& folder, const NamedTensors& tensors,
                              SafetensorsMetadata metadata = {}, const ShardOptions& options = {});

/// Reads what `save_safetensors_sharded`, or a Python tool, wrote: `<stem>.safetensors` if it is
/// there, else the index and its files. Refuses files that two saves mixed.
Safetensors load_safetensors_sharded(const std::filesystem::path& folder,
                                     const std::string& stem = "model");

}  // namespace accel
