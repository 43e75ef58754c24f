// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors to and from one safetensors file, as Python's `safetensors.torch` lays it out. Comes
// after safetensors_header.hpp, which knows the header; before sharded_safetensors.hpp (several
// files) and module_state.hpp and the rest, which say what the tensors mean. Includes of LibTorch
// only the tensor.
#pragma once

#include <accel/checkpoint/file.hpp>
#include <accel/checkpoint/safetensors_header.hpp>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace accel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What a file, or the files of an index, held: contiguous CPU tensors by name.
struct Safetensors {
  std::map<std::string, at::Tensor, std::less<>> tensors;
  SafetensorsMetadata metadata;
  std::string source;  ///< the path, for messages
};

/// Writes the tensors behind a header into an open file. A tensor may be on any device and have any
/// strides; it is copied dense to the CPU, one at a time. `metadata` gets {"format": "pt"} unless
/// it has a "format". Refuses, naming it, a tensor that has no data (undefined, meta), is not
/// dense, or has a type the format lacks.
void write_safetensors(OutputFile& file, const NamedTensors& tensors,
                       SafetensorsMetadata metadata = {});

/// Writes one file, atomically: until it is whole and on the disk, an old one stays. Local; one
/// rank calls it.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      SafetensorsMetadata metadata = {});

/// Reads one file, strictly (see `parse_safetensors_header`).
Safetensors load_safetensors(const std::filesystem::path& path);

namespace detail {

/// One tensor of an open file, on the CPU.
[[nodiscard]] at::Tensor read_tensor(const InputFile& file, const SafetensorsHeader& header,
                                     const SafetensorsEntry& entry);
[[nodiscard]] at::ScalarType scalar_type_of(const SafetensorsEntry& entry);

}  // namespace detail

/// A shape as messages show it: "[3, 2]".
std::string shape_text(at::IntArrayRef shape);

}  // namespace accel
