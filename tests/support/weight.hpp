// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The smallest model whose gradients one knows, and the accelerator of several ranks that trains it.
#pragma once

#include <accel/accel.hpp>

namespace accel::test {

/// A loss `w * x` has the gradient x.
struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

template <class Accumulation = accumulate<1>>
using Ddp = Accelerator<ddp, fp32, Accumulation, on<cpu>>;

}  // namespace accel::test
