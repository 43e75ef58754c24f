// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are one on all ranks though only some of them met their cause: the loss scale after an
// overflow, and fp32 masters of parameters that were averaged.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <limits>

using accel::PartialState;
using accel::test::results_of_ranks;
using accel::test::Weight;

namespace {

template <class Precision, class Accumulation = accel::accumulate<1>>
using Ddp = accel::Accelerator<accel::ddp, Precision, Accumulation, accel::on<accel::cpu>>;

const float infinity = std::numeric_limits<float>::infinity();

struct Outcome {
  std::vector<float> weights{};
  std::vector<bool> skipped{};
  std::vector<double> scales{};
  bool operator==(const Outcome&) const = default;
};

}  // namespace

TEST_CASE("ranks that overflowed apart agree on the scale before they reduce again") {
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    Ddp<accel::fp16> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto train = [&, &model = model, &optimizer = optimizer](float gradient) {
      accelerator.backward(model(torch::tensor(gradient)));
      optimizer.step();
      optimizer.zero_grad();
    };
    Outcome outcome;
    {
      const auto scope = accelerator.no_sync();
      train(state.process_index() == 1 ? infinity : 0.0f);
      outcome.scales.push_back(accelerator.scaler().get_scale());
    }
    for (int step = 0; step < 2; ++step) {
      train(1.0f + 2.0f * float(state.process_index()));
      outcome.weights.push_back(net->w.item<float>());
      outcome.scales.push_back(accelerator.scaler().get_scale());
    }
    return outcome;
  });
  CHECK(outcomes[0] == Outcome{{-2, -4}, {}, {65536, 32768, 32768}});
  CHECK(outcomes[1] == Outcome{{-2, -4}, {}, {32768, 32768, 32768}});
}

TEST_CASE("gradients that a rank has scaled for itself are brought to the common scale") {
  const auto weights = results_of_ranks<float>(2, [](const PartialState& state) {
    Ddp<accel::fp16, accel::accumulate<2>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto train = [&, &model = model, &optimizer = optimizer](float gradient) {
      accelerator.accumulate(model, [&] {
        accelerator.backward(model(torch::tensor(gradient)));
        optimizer.step();
        optimizer.zero_grad();
      });
    };
    const bool first = state.process_index() == 0;
    {
      const auto scope = accelerator.no_sync();
      train(0.0f);
      train(first ? 0.0f : infinity);
      train(first ? 1.0f : 2.0f);  // half a window, each rank with a scale of its own
    }
    train(first ? 3.0f : 6.0f);
    return net->w.item<float>();
  });
  CHECK(weights == std::vector<float>{-3, -3});  // the mean of 2 and 4
}

TEST_CASE("local SGD averages fp32 masters, which stay one on all ranks") {
  using Weights = std::vector<double>;
  const auto weights = results_of_ranks<Weights>(2, [](const PartialState& state) {
    Ddp<accel::with_masters<accel::bf16_true>> accelerator{state};
    auto net = std::make_shared<Weight>();
    {
      const torch::NoGradGuard no_grad;
      net->w.fill_(1.0);
    }
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto master = [&sgd] { return sgd.param_groups()[0].params()[0].item<double>(); };
    const auto train = [&, &model = model, &optimizer = optimizer](float gradient) {
      accelerator.backward(model(torch::tensor(gradient)));
      optimizer.step();
      optimizer.zero_grad();
    };
    Weights seen;
    accel::local_sgd(accelerator, model, 1, [&](auto& local) {
      // 1 - 1/1024 and 1 - 3/1024: bfloat16 has neither of them, nor their mean.
      train((1.0f + 2.0f * float(state.process_index())) / 1024);
      local.step();
    });
    seen.push_back(master());
    train(0.0f);
    seen.push_back(master());
    return seen;
  });
  for (const auto& seen : weights) CHECK(seen == Weights{1 - 2.0 / 1024, 1 - 2.0 / 1024});
}
