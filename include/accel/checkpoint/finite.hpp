// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether a state is worth saving: a model that has become NaN must not push the good ones out of a
// rotation. Asked before a save; decides nothing itself. Includes of LibTorch only the tensor.
#pragma once

#include <accel/checkpoint/safetensors.hpp>

#include <string>
#include <vector>

namespace accel {

/// The names of floating-point tensors that have a NaN or an infinity.
std::vector<std::string> non_finite_names(const NamedTensors& tensors);

}  // namespace accel
