// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Norms of all gradients or parameters of a model together, to be watched; clipping (gradients.hpp)
// uses the same one. Local, but for pieces: after a reduction every rank has the same gradients.
#pragma once

#include <accel/comm/communicator.hpp>

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

/// The norm (0-dim) of all values of some tensors as if they were one vector, as
/// torch.nn.utils.get_total_norm has it: the norm of their norms. 0 of none.
[[nodiscard]] at::Tensor joint_norm(const std::vector<at::Tensor>& tensors, double norm_type = 2.0);

/// The same of tensors that are split over ranks: each rank gives its pieces, in the same order, some
/// of them empty. Every rank must call this.
[[nodiscard]] at::Tensor joint_norm_of_pieces(const Communicator& communicator,
                                              const std::vector<at::Tensor>& pieces,
                                              double norm_type = 2.0);

/// Of the gradients of a module, which stay as they are. Under a loss scale or inside a window they
/// are not finished yet: `accelerator.grad_norm(model)` finishes them first.
[[nodiscard]] at::Tensor grad_norm(const torch::nn::Module& module, double norm_type = 2.0);

/// Of the parameters of a module, each counted once.
[[nodiscard]] at::Tensor parameter_norm(const torch::nn::Module& module, double norm_type = 2.0);

}  // namespace accel
