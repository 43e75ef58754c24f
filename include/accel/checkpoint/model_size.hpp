// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How large a model is, from the names and shapes of its saved weights: what policy/memory.hpp asks
// for, without building the model.
#pragma once

#include <accel/checkpoint/safetensors_header.hpp>
#include <accel/policy/memory.hpp>

#include <filesystem>
#include <vector>

namespace accel {

/// Counts the elements of floating point tensors. A unit is a child of a numbered list ("blocks.0",
/// "blocks.1", ...) of which several have tensors of the same names, or what is left over: what
/// wrap_auto finds, where children of equal names are of one class. Buffers are counted too, since a
/// file does not tell them from parameters.
[[nodiscard]] ModelSize model_size(const std::vector<SafetensorsEntry>& tensors);

/// The same of a .safetensors file, of which the header alone is read. Throws Error(checkpoint).
[[nodiscard]] ModelSize model_size(const std::filesystem::path& file);

}  // namespace accel
