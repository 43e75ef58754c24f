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

}  // namespace

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
