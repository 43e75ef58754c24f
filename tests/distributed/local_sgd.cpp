// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that train apart and average their parameters; what they count together.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::run_ranks;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A loss `w * x` has the gradient x.
struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::ones({}));
  at::Tensor b = register_buffer("b", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

template <class Precision = accel::fp32, class Accumulation = accel::accumulate<1>>
using Ddp = accel::Accelerator<accel::ddp, Precision, Accumulation, accel::on<accel::cpu>>;

}  // namespace

TEST_CASE("local SGD averages every k steps and at the end") {
  // Accelerate's LocalSGD gives these weights: lr 0.1, x = 1 and 2, k = 2, three steps.
  std::vector<std::vector<float>> weights(2);
  std::vector<float> buffers(2);
  std::vector<int64_t> reductions(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Ddp<> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    net->b.fill_(float(rank));
    const auto x = torch::tensor(1.0f + float(rank));
    const auto step = [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(x));
      optimizer.step();
      optimizer.zero_grad();
      weights[rank].push_back(net->w.item<float>());
    };
    accel::local_sgd(accelerator, model, 2, [&](auto& local) {
      for (int i = 0; i < 3; ++i) {
        step();
        local.step();
        if (i == 1) weights[rank].push_back(net->w.item<float>());
      }
    });
    weights[rank].push_back(net->w.item<float>());
    buffers[rank] = net->b.item<float>();
    reductions[rank] = accelerator.reductions();
    step();  // and afterwards gradients are reduced again: the mean of 1 and 2
  });
  const std::vector<std::vector<float>> expected = {{0.9f, 0.8f, 0.7f, 0.6f, 0.55f, 0.4f},
                                                    {0.8f, 0.6f, 0.7f, 0.5f, 0.55f, 0.4f}};
  for (size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(weights[rank].size() == expected[rank].size());
    for (size_t i = 0; i < expected[rank].size(); ++i) {
      CAPTURE(rank, i);
      CHECK(weights[rank][i] == Approx(expected[rank][i]));
    }
    CHECK(buffers[rank] == float(rank));
    CHECK(reductions[rank] == 0);
  }
}

TEST_CASE("local SGD inside accumulation windows, where the user clips") {
  std::vector<float> weights(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Ddp<accel::fp32, accel::accumulate<2>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accel::local_sgd(accelerator, model, 10,
                     [&, &model = model, &optimizer = optimizer](auto& local) {
                       for (int i = 0; i < 2; ++i)
                         accelerator.accumulate(model, [&] {
                           accelerator.backward(model(torch::tensor(1.0f + float(rank))));
                           accelerator.clip_grad_norm_(model, 100);
                           optimizer.step();
                           optimizer.zero_grad();
                           local.step();
                         });
                     });
    weights[rank] = net->w.item<float>();
  });
  CHECK(weights == std::vector<float>{-0.5f, -0.5f});  // 1 - the mean of 1 and 2
}

TEST_CASE("parameters of several types are averaged, 16 bits by way of fp32") {
  std::vector<std::vector<double>> values(2);
  run_ranks(2, [&](const PartialState& state) {
    torch::nn::Module net;
    const auto rank = state.process_index();
    auto a = net.register_parameter("a", torch::full({2, 3}, 1.0f + float(rank)));
    auto h = net.register_parameter("h", torch::full({3}, 256.0 + 2 * rank, torch::kBFloat16));
    auto d = net.register_parameter("d", torch::full({1}, 0.1 * rank, torch::kDouble));
    accel::average_parameters(state.communicator(), net);
    values[static_cast<size_t>(rank)] = {a[1][2].item<double>(), h[0].item<double>(),
                                         d[0].item<double>()};
  });
  // 257 lies between two bfloat16 values; ties go to the even one.
  for (const auto& mine : values) CHECK(mine == std::vector<double>{1.5, 256, 0.05});
}

TEST_CASE(
    "what the user writes to a 16-bit parameter is averaged, and what comes after it is kept") {
  struct Half : torch::nn::Module {
    at::Tensor w = register_parameter("w", torch::ones({1}, torch::kBFloat16));
    at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
  };
  const auto write = [](Half& net, double value) {
    const torch::NoGradGuard no_grad;
    net.w.fill_(value);
  };
  using Values = std::vector<float>;
  const Values expected{5, 3};
  CHECK(accel::test::results_of_ranks<Values>(2, [&](const PartialState& state) {
          Ddp<accel::with_masters<accel::bf16_true>> accelerator{state};
          auto net = std::make_shared<Half>();
          torch::optim::SGD sgd(net->parameters(), 1.0);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          const auto step = [&, &model = model, &optimizer = optimizer] {
            accelerator.backward(model(torch::ones({1}, torch::kBFloat16)));
            optimizer.step();
            optimizer.zero_grad();
          };
          step();
          Values seen;
          accel::local_sgd(accelerator, model, 1, [&](auto& local) {
            write(*net, 4 + 2 * state.process_index());
            local.step();
            seen.push_back(net->w.template item<float>());
          });
          write(*net, 4);
          step();
          seen.push_back(net->w.item<float>());
          return seen;
        }) == std::vector<Values>{expected, expected});
}

TEST_CASE("on one process local SGD is the loop alone, and its number of steps is checked") {
  accel::Accelerator<accel::single> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.5);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accel::local_sgd(accelerator, model, 1, [&, &model = model, &optimizer = optimizer](auto& local) {
    accelerator.backward(model(torch::ones({})));
    optimizer.step();
    local.step();
  });
  CHECK(net->w.item<float>() == 0.5f);
  CHECK_THROWS_WITH(accel::local_sgd(accelerator, model, 0, [](auto&) {}),
                    ContainsSubstring("every 0 steps"));
}

TEST_CASE("a body that throws on every rank leaves no scope behind") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<> accelerator{state};
    auto net = std::make_shared<Weight>();
    auto model = accelerator.prepare(net);
    try {
      accel::local_sgd(accelerator, model, 1, [](auto&) { throw std::runtime_error("mine"); });
    } catch (const std::runtime_error&) {
    }
    accelerator.backward(model(torch::tensor(float(state.process_index()))));
    if (net->w.grad().item<float>() != 0.5f) throw std::runtime_error("not reduced");
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("throughput of all ranks: what all did, in the time of the slowest") {
  std::vector<accel::ThroughputRates> rates(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    std::chrono::steady_clock::time_point now{};
    accel::Throughput throughput({.warmup = 0, .clock = [&] { return now; }});
    now += std::chrono::seconds(1 + state.process_index());
    throughput.step(10 + state.process_index(), 100);
    rates[rank] = throughput.overall().over_ranks(state.communicator());
  });
  for (const auto& all : rates) {
    CHECK(all.steps == 1);
    CHECK(all.samples_per_second() == Approx(21 / 2.0));
    CHECK(all.tokens_per_second() == Approx(100));
    CHECK(all.steps_per_second() == Approx(0.5));
  }
}

TEST_CASE("early stopping on one rank stops all") {
  std::vector<int> stopped(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<> accelerator{state};
    accel::EarlyStopping stopping({.patience = 0});
    auto& mine = stopped[static_cast<size_t>(state.process_index())];
    for (mine = 0; mine < 10; ++mine)  // rank 1's loss rises from the third epoch on
      if (stopping.step(accelerator, state.process_index() == 1 && mine >= 2 ? 5.0 : 1.0 - mine))
        break;
  });
  CHECK(stopped == std::vector<int>{2, 2});
}
