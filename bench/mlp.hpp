// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The model and the data that the step benchmarks share: an MLP 784-64-64-10 over synthetic
// samples.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <vector>

namespace bench {

struct Mlp : torch::nn::Module {
  torch::nn::Linear a = register_module("a", torch::nn::Linear(784, 64));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(64, 64));
  torch::nn::Linear c = register_module("c", torch::nn::Linear(64, 10));
  at::Tensor forward(const at::Tensor& x) { return c(torch::relu(b(torch::relu(a(x))))); }
};

inline constexpr int64_t batch_size = 64;
inline constexpr int64_t samples = 12'800;
inline constexpr double learning_rate = 0.01;

/// Samples in two tensors; batches are gathered rows.
struct Synthetic {
  at::Tensor x = torch::randn({samples, 784});
  at::Tensor y = torch::randint(10, {samples}, torch::kLong);
  [[nodiscard]] size_t size() const { return static_cast<size_t>(samples); }
  [[nodiscard]] torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) const {
    auto rows = torch::empty({static_cast<int64_t>(indices.size())}, torch::kLong);
    std::copy(indices.begin(), indices.end(), rows.mutable_data_ptr<int64_t>());
    return {x.index_select(0, rows), y.index_select(0, rows)};
  }
};

using Clock = std::chrono::steady_clock;
inline double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace bench
