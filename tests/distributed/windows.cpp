// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a window of several ranks does once: the reduction of every gradient in it, the broadcast of
// buffers; and what a loader's last round cuts from metrics.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::results_of_ranks;
using Catch::Approx;

namespace {

/// Two weights, of which a forward uses those that it is told to.
struct Branches : torch::nn::Module {
  at::Tensor always = register_parameter("always", torch::zeros({}));
  at::Tensor branch = register_parameter("branch", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x, bool both) {
    return both ? always * x + branch * x : always * x;
  }
};

/// Running mean, running variance and counter of a batch normalization.
using Statistics = std::array<double, 3>;

}  // namespace

TEST_CASE("row 7: what only a part of a window used is reduced with it, once") {
  struct Outcome {
    std::vector<float> always{}, branch{};
    int64_t reductions = 0;
  };
  // Whether a micro-batch uses the branch, on each rank.
  const std::vector<std::array<bool, 2>> uses{{true, true},   {false, false},  // early
                                              {false, false}, {true, true},    // late
                                              {true, false},  {false, false},  // early, on one rank
                                              {true, false},  {false, true}};
  const auto outcomes = results_of_ranks<Outcome>(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    accel::AcceleratorOptions options;
    options.ddp.find_unused_parameters = true;
    Ddp<accel::accumulate<2>> accelerator{state, options};
    auto net = std::make_shared<Branches>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Outcome outcome;
    for (size_t micro_batch = 0; micro_batch < uses.size(); ++micro_batch)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        const auto x = torch::tensor(2.0f + 4.0f * float(rank));
        accelerator.backward(model(x, uses[micro_batch][rank]));
        if (accelerator.sync_gradients()) {
          outcome.always.push_back(net->always.grad().item<float>());
          outcome.branch.push_back(net->branch.grad().item<float>());
        }
        optimizer.step();
        optimizer.zero_grad();
      });
    outcome.reductions = accelerator.reductions();
    return outcome;
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.always == std::vector<float>{4, 4, 4, 4});
    CHECK(outcome.branch == std::vector<float>{2, 2, 0.5f, 2});
    CHECK(outcome.reductions == 4);
  }
}

TEST_CASE("B23 buffers: each rank's own in a window, rank 0's behind it, and synchronized ones") {
  const auto statistics_of = [](bool synchronized) {
    return results_of_ranks<std::vector<Statistics>>(2, [=](const PartialState& state) {
      accel::AcceleratorOptions options;
      options.ddp.sync_batch_norm = synchronized;
      Ddp<> accelerator{state, options};
      auto net = torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(1).momentum(0.1));
      auto model = accelerator.prepare(net);
      const auto x =
          state.is_main_process() ? torch::tensor({{0.f}, {2.f}}) : torch::tensor({{10.f}, {14.f}});
      std::vector<Statistics> seen;
      const auto look = [&] {
        seen.push_back({net->running_mean.item<double>(), net->running_var.item<double>(),
                        net->num_batches_tracked.item<double>()});
      };
      for (int window = 0; window < 2; ++window) {
        accelerator.accumulate(model, [&] {
          accelerator.backward(model(x).sum());
          look();
        });
        look();
      }
      return seen;
    });
  };
  const auto check = [](const std::vector<Statistics>& seen,
                        const std::vector<Statistics>& expected) {
    REQUIRE(seen.size() == expected.size());
    for (size_t i = 0; i < seen.size(); ++i)
      for (size_t part = 0; part < 3; ++part) {
        CAPTURE(i, part);
        CHECK(seen[i][part] == Approx(expected[i][part]));
      }
  };
  const auto own = statistics_of(false);
  check(own[0], {{0.1, 1.1, 1}, {0.1, 1.1, 1}, {0.19, 1.19, 2}, {0.19, 1.19, 2}});
  check(own[1], {{1.2, 1.7, 1}, {0.1, 1.1, 1}, {1.29, 1.79, 2}, {0.19, 1.19, 2}});
  for (const auto& seen : statistics_of(true))
    check({seen[0], seen[1]}, {{0.65, 5.2666669, 1}, {0.65, 5.2666669, 1}});
}

TEST_CASE("B11 a value of each rank's batch is no sample: the last round cuts none of them") {
  struct Outcome {
    std::vector<int64_t> losses{}, words{}, samples{};
  };
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    Ddp<> accelerator{state};
    std::vector<at::Tensor> samples;
    for (int i = 0; i < 9; ++i) samples.push_back(torch::tensor(float(i)));
    auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
    Outcome outcome;
    for (auto& batch : loader) {
      outcome.losses.push_back(accelerator.gather_for_metrics(batch.mean()).numel());
      const std::vector<std::string> word{"rank " + std::to_string(state.process_index())};
      outcome.words.push_back(std::ssize(accelerator.gather_for_metrics(word)));
      outcome.samples.push_back(accelerator.gather_for_metrics(batch).numel());
    }
    return outcome;
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.losses == std::vector<int64_t>{2, 2, 2});
    CHECK(outcome.words == std::vector<int64_t>{2, 2, 2});
    CHECK(outcome.samples == std::vector<int64_t>{4, 4, 1});
  }
}
