// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a forward and its backward ask of memory beside the model: measured by running them on `meta`,
// where tensors have shapes and no memory. With rank_memory (policy/memory.hpp) it says whether a
// training fits, before anything is allocated.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>

namespace accel {

/// Bytes of one process, without parameters and their gradients.
struct ActivationMemory {
  int64_t kept = 0;  ///< what waits for backward when forward is over, and its result
  int64_t peak = 0;  ///< the most that lives at once, in forward and backward
};

/// Runs `loss`, which calls the module and returns a scalar, and its backward. Parameters and buffers
/// are on meta (construct the module inside accel::deferred_init), and so have to be the inputs.
/// Nothing about the module changes. What an operation takes while it runs, and kernels that differ
/// from device to device, are not seen: autocast leaves meta alone, so that with bf16 and fp16 this is
/// what fp32 takes. An operation that LibTorch does not have on meta (convolutions, batch
/// normalization) runs on the CPU, with zeros, and its memory is freed at once. Local. Throws
/// Error(usage) where a parameter is elsewhere, or `loss` is not a scalar with a graph.
///
///     auto net = accel::deferred_init([&] { return Gpt(size); });
///     const auto tokens = torch::empty({8, 1024}, torch::dtype(torch::kLong).device(torch::kMeta));
///     const auto memory = accel::activation_memory(*net, [&] { return net->loss(tokens); });
ActivationMemory activation_memory(const torch::nn::Module& module,
                                   const std::function<at::Tensor()>& loss);

}  // namespace accel
