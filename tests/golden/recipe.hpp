// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// recipe.py in C++: the model, the data and the seeds that every golden trace shares, draw for
// draw, and the check that they are what the trace starts from. Comes after trace.hpp; replay.hpp
// trains what is made here.
#pragma once

#include "trace.hpp"

#include <accel/detail/error.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace golden {

inline constexpr std::int64_t features = 20, hidden = 32, classes = 4, batch_size = 16;
inline constexpr double drop_probability = 0.1, clip_norm = 0.25;
inline constexpr std::uint64_t init_seed = 42, data_seed = 43, train_seed = 44;

/// l3(drop(relu(l2(drop(relu(l1(x)))))))
struct Mlp : torch::nn::Module {
  explicit Mlp(bool module_dropout) : uses_module_dropout(module_dropout) {
    l1 = register_module("l1", torch::nn::Linear(features, hidden));
    l2 = register_module("l2", torch::nn::Linear(hidden, hidden));
    l3 = register_module("l3", torch::nn::Linear(hidden, classes));
    dropout = register_module("drop", torch::nn::Dropout(drop_probability));
  }

  at::Tensor forward(const at::Tensor& x) {
    return l3(drop(torch::relu(l2(drop(torch::relu(l1(x)))))));
  }

  /// Where the probability is a tensor, every CPU draws the same bits.
  at::Tensor drop(const at::Tensor& h) {
    if (uses_module_dropout) return dropout(h);
    const auto keep = torch::bernoulli(torch::full(h.sizes(), 1 - drop_probability));
    return h * keep.to(h.scalar_type()) / (1 - drop_probability);
  }

  bool uses_module_dropout;
  torch::nn::Linear l1{nullptr}, l2{nullptr}, l3{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

/// Samples with their number, so that the order can be seen.
struct Samples {
  at::Tensor x, y;

  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(x.size(0)); }
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor, std::int64_t> get(std::size_t index) const {
    const auto number = static_cast<std::int64_t>(index);
    return {x[number], y[number], number};
  }
};

struct Start {
  std::shared_ptr<Mlp> model;
  Samples samples;
};

/// Everything before the training. The order of these lines is the order of the draws.
inline Start start_of(const Json& trace, int rank) {
  Start start;
  torch::manual_seed(init_seed);
  start.model = std::make_shared<Mlp>(trace["drop"] == "module");
  torch::manual_seed(data_seed);
  const auto count = trace["samples"].get<std::int64_t>();
  start.samples.x = torch::randn({count, features});
  start.samples.y = torch::randint(0, classes, {count}, torch::kLong);
  torch::manual_seed(train_seed + static_cast<std::uint64_t>(rank));
  return start;
}

inline std::string bits(const at::Tensor& tensor) {
  std::string text;
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    text += tensor[i].item<double>() != 0 ? '1' : '0';
  return text;
}

/// Checks the draws that follow a seeding; leaves the generator seeded for the training.
inline void check_first_draws(const Json& trace, int rank) {
  const auto& expected = trace["first_draws"][static_cast<std::size_t>(rank)];
  const auto seed = [&] { torch::manual_seed(train_seed + static_cast<std::uint64_t>(rank)); };
  seed();
  CHECK(at::empty({}, at::kLong).random_().item<std::int64_t>() ==
        expected["base_seed"].get<std::int64_t>());
  seed();
  CHECK(bits(torch::bernoulli(torch::full({64}, 1 - drop_probability))) ==
        expected["tensor_bernoulli"].get<std::string>());
  if (!intel()) {
    seed();
    CHECK(bits(torch::nn::functional::dropout(
              torch::ones(64),
              torch::nn::functional::DropoutFuncOptions().p(drop_probability).training(true))) ==
          expected["module"].get<std::string>());
  }
  seed();
  const auto drawn = torch::rand(4);
  for (std::int64_t i = 0; i < 4; ++i)
    CHECK(drawn[i].item<double>() == expected["rand"][static_cast<std::size_t>(i)].get<double>());
  seed();
}

/// Checks that the run starts where the trace does: weights exactly, drawn samples to the last
/// place but one.
inline void check_start(const Start& start, const Json& trace) {
  std::size_t parameters = 0;
  for (const auto& item : start.model->named_parameters()) {
    INFO(item.key());
    ++parameters;
    REQUIRE(trace["first_weights"].contains(item.key()));
    const auto flat = item.value().detach().flatten();
    for (std::int64_t i = 0; i < 4; ++i)
      CHECK(flat[i].item<double>() ==
            trace["first_weights"][item.key()][static_cast<std::size_t>(i)].get<double>());
    check_series("checksums of the start", checksum(item.value()),
                 numbers(trace["checksums_start"][item.key()]), 1e-12);
  }
  CHECK(parameters == trace["first_weights"].size());
  for (std::int64_t i = 0; i < 4; ++i)
    CHECK(distance(start.samples.x[0][i].item<double>(),
                   trace["first_samples"]["x"][static_cast<std::size_t>(i)].get<double>()) <= 1e-6);
  for (std::int64_t i = 0; i < 16; ++i)
    CHECK(start.samples.y[i].item<std::int64_t>() ==
          trace["first_samples"]["y"][static_cast<std::size_t>(i)].get<std::int64_t>());
}

}  // namespace golden
