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
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

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

/// A model's files, open: headers are read at once, strictly, and values one tensor at a time, so that
/// a model may be larger than memory.
class SafetensorsReader {
 public:
  /// `path` is one file; or a folder, of which `<stem>.safetensors` is read if it is there, else the
  /// index and its files, as `save_safetensors_sharded` or a Python tool wrote them. Throws
  /// Error(checkpoint) where there are none, one is damaged, or two saves were mixed.
  explicit SafetensorsReader(const std::filesystem::path& path, const std::string& stem = "model");
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  /// What there is, by name.
  [[nodiscard]] const std::map<std::string, SafetensorsEntry, std::less<>>& entries()
      const noexcept;
  [[nodiscard]] const SafetensorsMetadata& metadata() const noexcept;
  /// The path of the file or of the index, for messages.
  [[nodiscard]] const std::string& source() const noexcept;

  /// The values of one of them, on the CPU. Throws Error(checkpoint).
  [[nodiscard]] at::Tensor read(std::string_view name) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Everything that a SafetensorsReader of the folder finds.
Safetensors load_safetensors_sharded(const std::filesystem::path& folder,
                                     const std::string& stem = "model");

}  // namespace accel
