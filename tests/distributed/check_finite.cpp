// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A value that is not finite on one rank: all stop at the same step and say where it came from.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <limits>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::errors_of_ranks;
using accel::test::Weight;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

struct TwoLayers : torch::nn::Module {
  torch::nn::Linear l1 = register_module("l1", torch::nn::Linear(2, 2));
  torch::nn::Linear l2 = register_module("l2", torch::nn::Linear(2, 2));
  at::Tensor frozen = register_parameter("frozen", torch::ones({2}), /*requires_grad=*/false);
  at::Tensor forward(const at::Tensor& x) { return l2(l1(x)); }
};

}  // namespace

TEST_CASE("B30 a gradient that becomes NaN on one rank is named with it on all, before the step") {
  std::vector<at::Tensor> before(2), after(2);
  const auto errors = errors_of_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Ddp<> accelerator{state};
    auto net = std::make_shared<TwoLayers>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 5; ++step)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        auto loss = model(torch::ones({1, 2})).sum();
        if (step == 3 && rank == 1) loss = loss + net->l2->bias[1] * nan_value;
        accelerator.backward(loss);
        before[rank] = net->l2->bias.detach().clone();
        after[rank] = net->l2->bias.detach();
        accelerator.check_finite(model, step);
        optimizer.step();
        optimizer.zero_grad();
      });
  });
  for (size_t rank : {0, 1}) {
    CHECK_THAT(errors[rank],
               ContainsSubstring(fmt::format("rank {}: step 3: the gradient of l2.bias has 1 of 2 "
                                             "values that are not finite, the first at [1]: nan, "
                                             "which came from rank 1;",
                                             rank)));
    CHECK(torch::equal(before[rank], after[rank]));
  }
}

TEST_CASE("B30 a NaN inside a window is found where it closes, with the rank that it came from") {
  const auto errors = errors_of_ranks(3, [](const PartialState& state) {
    Ddp<accel::accumulate<2>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int batch = 0; batch < 4; ++batch)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        const bool bad = batch == 2 && state.process_index() == 2;
        accelerator.backward(model(torch::tensor(bad ? nan_value : 1.0f)));
        accelerator.check_finite(model, batch);
        optimizer.step();
        optimizer.zero_grad();
      });
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("step 3: the gradient of w has 1 of 1") &&
                          ContainsSubstring("which came from rank 2;"));
}

TEST_CASE("parameters that are not finite on one rank only are an error on all") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<> accelerator{state};
    auto net = std::make_shared<Weight>();
    auto model = accelerator.prepare(net);
    accelerator.check_finite(model, 0);
    const auto scope = accelerator.no_sync();
    const torch::NoGradGuard no_grad;
    if (state.is_main_process()) net->w.fill_(nan_value);
    accelerator.check_finite(model, 1);
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("step 1: w has 1 of 1") &&
                          ContainsSubstring("at []: nan, on rank 0;"));
}

TEST_CASE("a joined rank that finds a value that is not finite says so to those that wait for it") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<> accelerator{state};
    auto model = accelerator.prepare(std::make_shared<Weight>());
    accelerator.join_uneven_inputs(model, [&] {
      for (int batch = 0; batch < 2 * state.process_index(); ++batch)
        accelerator.accumulate(model, [&] {
          accelerator.backward(model(torch::tensor(nan_value)));
          accelerator.check_finite(model, batch);
        });
    });
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("rank 1: step 0: the gradient of w has 1 of 1"));
}
