// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A module whose constructor does what constructors do, for tests of deferred construction.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace accel::test {

namespace nn = torch::nn;

/// Layers of every kind, weights that are initialised again, views, a mask that is filled by hand.
struct ManyImpl : nn::Module {
  nn::Embedding words = register_module("words", nn::Embedding(11, 6));
  nn::Linear linear = register_module("linear", nn::Linear(6, 8));
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 4, 3)));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(8));
  nn::LayerNorm layer_norm =
      register_module("layer_norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  nn::LSTM lstm = register_module("lstm", nn::LSTM(8, 5));
  nn::MultiheadAttention attention =
      register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)));
  nn::Sequential blocks = register_module("blocks", nn::Sequential());
  at::Tensor scale = register_parameter("scale", torch::full({3}, 0.5) + torch::rand({3}));
  at::Tensor unset = register_parameter("unset", torch::zeros({2, 2}));
  at::Tensor mask = register_buffer("mask", torch::tensor({1.F, 0.F, 3.F}) * 2);
  at::Tensor steps = register_buffer("steps", torch::arange(5).flip(0));

  ManyImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(nn::Linear(8, 8));
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : linear->parameters()) nn::init::normal_(parameter, 0.1, 0.02);
    conv->weight.mul_(0.3);
    unset.select(0, 1).fill_(7);
    words->weight.slice(0, 2, 4).uniform_(-1, 1);
    norm->running_mean.normal_();
  }
};
TORCH_MODULE(Many);

inline std::vector<at::Tensor> values_of(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const auto& parameter : module.named_parameters())
    values.push_back(parameter.value().clone());
  for (const auto& buffer : module.named_buffers()) values.push_back(buffer.value().clone());
  return values;
}

inline bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].scalar_type() != b[i].scalar_type() || !at::equal(a[i], b[i])) return false;
  return true;
}

}  // namespace accel::test
