// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Named tensors as a part of a state folder: where safetensors.hpp and state_folder.hpp meet.
// Includes of LibTorch only the tensor.
#pragma once

#include <accel/checkpoint/safetensors.hpp>
#include <accel/checkpoint/state_folder.hpp>

#include <string>
#include <utility>

namespace accel {

/// Adds `<part>.safetensors`. The tensors are read while the state is written, not before.
inline void add_tensors(StateParts& parts, const std::string& part, NamedTensors tensors,
                        SafetensorsMetadata metadata = {}) {
  parts.add(part + ".safetensors",
            [tensors = std::move(tensors), metadata = std::move(metadata)](OutputFile& file) {
              write_safetensors(file, tensors, metadata);
            });
}

/// Reads `<part>.safetensors`.
inline Safetensors load_tensors(const StateFolder& state, const std::string& part) {
  return load_safetensors(state.file(part + ".safetensors"));
}

}  // namespace accel
