// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations that LibTorch's C++ half does not have on meta (batch normalization, say: their shapes
// are written in Python): they run on the CPU, with zeros, and only the shapes are taken. Used by
// deferred_init.hpp and activation_memory.hpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <vector>

namespace accel::detail {

/// Gives the stack tensors on meta like the results that an operation has on the CPU. False, and
/// nothing done, where it takes lists of tensors, returns anything but new tensors, or returns shapes
/// that depend on values.
[[nodiscard]] bool run_for_shapes(const c10::OperatorHandle& operation,
                                  std::vector<c10::IValue> arguments, torch::jit::Stack& stack);

/// From its first call on, operations on meta that LibTorch does not have run that way in this process.
/// No other thread may meanwhile, in that call, be running operations on meta.
void install_meta_kernels();

}  // namespace accel::detail
