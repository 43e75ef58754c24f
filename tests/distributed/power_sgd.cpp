// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Gradients that travel as thin matrices: what they lose, what makes up for it, and that it survives a
// saved state and another strategy.
#include "support/scratch_folder.hpp"
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using accel::test::run_ranks;
using accel_test::ScratchFolder;
using Catch::Matchers::ContainsSubstring;

namespace {

/// The gradient is whatever it is asked for.
struct Matrix : torch::nn::Module {
  at::Tensor m = register_parameter("m", torch::zeros({12, 8}));
  at::Tensor bias = register_parameter("bias", torch::zeros({3}));
  at::Tensor forward(const at::Tensor& gradient) {
    return (m * gradient).sum() + bias.sum() * gradient[0][0];
  }
};

at::Tensor draw(c10::IntArrayRef sizes, uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

accel::AcceleratorOptions compressing(const accel::PowerSgdOptions& power_sgd) {
  accel::AcceleratorOptions options;
  options.ddp.comm_hook = accel::CommHook::power_sgd;
  options.ddp.power_sgd = power_sgd;
  return options;
}

}  // namespace

TEST_CASE("PowerSGD is exact before its start and where the mean has the rank of its matrices") {
  std::vector<std::vector<at::Tensor>> of_ranks(2);
  // Both ranks' gradients have one row space: their mean is of rank 1.
  const auto column = [](int rank) { return draw({12, 1}, 10 + uint64_t(rank)); };
  const auto row = draw({1, 8}, 5);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<> accelerator{state, compressing({.start_powerSGD_iter = 2})};
    auto net = std::make_shared<Matrix>();
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 5; ++step) {
      net->zero_grad();
      accelerator.backward(model(torch::mm(column(state.process_index()), row)));
      of_ranks[static_cast<size_t>(state.process_index())].push_back(net->m.grad().clone());
      of_ranks[static_cast<size_t>(state.process_index())].push_back(net->bias.grad().clone());
    }
  });
  const auto mean = torch::mm(0.5 * (column(0) + column(1)), row);
  for (const auto& gradients : of_ranks)
    for (size_t i = 0; i < gradients.size(); i += 2) {
      CAPTURE(i);
      CHECK(torch::allclose(gradients[i], mean, 1e-4, 1e-5));
      CHECK(torch::allclose(gradients[i + 1], mean[0][0].expand({3}), 1e-4, 1e-5));
    }
}

TEST_CASE("PowerSGD compresses, and its error feedback makes up for what was lost") {
  std::vector<at::Tensor> sums(2), firsts(2);
  constexpr int steps = 300;
  run_ranks(2, [&](const PartialState& state) {
    Ddp<> accelerator{state, compressing({.start_powerSGD_iter = 2})};
    auto net = std::make_shared<Matrix>();
    auto model = accelerator.prepare(net);
    const auto rank = static_cast<size_t>(state.process_index());
    sums[rank] = torch::zeros({12, 8});
    for (int step = 0; step < steps; ++step) {
      net->zero_grad();
      accelerator.backward(model(draw({12, 8}, 20 + rank)));
      sums[rank] += net->m.grad();
      if (step == 2) firsts[rank] = net->m.grad().clone();
    }
  });
  const auto mean = 0.5 * (draw({12, 8}, 20) + draw({12, 8}, 21));
  CHECK(torch::equal(sums[0], sums[1]));
  CHECK((firsts[0] - mean).norm().item<float>() > 0.3 * mean.norm().item<float>());
  CHECK((sums[0] / steps - mean).norm().item<float>() < 0.05 * mean.norm().item<float>());
  const auto refused = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<> accelerator{state, compressing({.matrix_approximation_rank = 0})};
    (void)accelerator.prepare(std::make_shared<Matrix>());
  });
  for (const auto& error : refused)
    CHECK_THAT(error, ContainsSubstring("matrix_approximation_rank"));
}

TEST_CASE("PowerSGD compresses 16-bit gradients") {
  std::vector<at::Tensor> of_ranks(2);
  const auto column = [](int rank) { return draw({12, 1}, 10 + uint64_t(rank)); };
  const auto row = draw({1, 8}, 5);
  run_ranks(2, [&](const PartialState& state) {
    accel::Accelerator<accel::ddp, accel::bf16_true, accel::accumulate<1>, accel::on<accel::cpu>>
        accelerator{state, compressing({.start_powerSGD_iter = 2})};
    auto net = std::make_shared<Matrix>();
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      accelerator.backward(model(torch::mm(column(state.process_index()), row)));
    }
    of_ranks[static_cast<size_t>(state.process_index())] = net->m.grad().to(torch::kFloat);
  });
  const auto mean = torch::mm(0.5 * (column(0) + column(1)), row);
  CHECK(torch::equal(of_ranks[0], of_ranks[1]));
  CHECK((of_ranks[0] - mean).norm().item<float>() < 0.03f * mean.norm().item<float>());
}

namespace {

/// Matrices of several sizes, in buckets of their own, which come in another order from the second
/// reduction on.
struct Matrices : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(16, 24));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(24, 20));
  torch::nn::Linear third = register_module("third", torch::nn::Linear(20, 12));
  Matrices() {
    uint64_t seed = 30;
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.copy_(0.3 * draw(parameter.sizes(), ++seed));
  }
  at::Tensor forward(const at::Tensor& x) {
    return third(torch::tanh(second(torch::tanh(first(x)))));
  }
};

/// Compression of them.
accel::AcceleratorOptions in_many_buckets(bool warm_start = true) {
  auto options = compressing({.start_powerSGD_iter = 2, .warm_start = warm_start});
  options.ddp.bucket_cap_bytes = options.ddp.first_bucket_cap_bytes = 1024;
  return options;
}

template <class Accelerator, class Model, class Optimizer>
void train(Accelerator& accelerator, const Model& model, Optimizer& optimizer, uint64_t from,
           uint64_t to) {
  for (auto step = from; step < to; ++step)
    accelerator.accumulate(model, [&] {
      const auto x = draw({8, 16}, 100 + 10 * step + uint64_t(accelerator.process_index()));
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    });
}

std::vector<at::Tensor> weights_of(const Matrices& net) {
  std::vector<at::Tensor> weights;
  for (const auto& parameter : net.parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

}  // namespace

TEST_CASE("B18 PowerSGD: 8 steps straight are 4, a saved state, and 4") {
  const ScratchFolder folder;
  for (const bool warm_start : {true, false}) {
    CAPTURE(warm_start);
    const auto of_ranks =
        results_of_ranks<std::vector<std::vector<at::Tensor>>>(2, [&](const PartialState& state) {
          std::vector<std::vector<at::Tensor>> results;
          const auto life = [&](uint64_t from, uint64_t to, const std::string& load,
                                const std::string& save) {
            Ddp<> accelerator{state, in_many_buckets(warm_start)};
            auto net = std::make_shared<Matrices>();
            torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
            auto [model, optimizer] = accelerator.prepare(net, adamw);
            if (!load.empty()) accelerator.load_state(load);
            train(accelerator, model, optimizer, from, to);
            if (!save.empty()) accelerator.save_state(save);
            results.push_back(weights_of(*net));
          };
          const auto place = folder.path() / (warm_start ? "warm" : "cold");
          life(0, 8, {}, {});
          life(0, 4, {}, place.string());
          life(4, 8, place.string(), {});
          return results;
        });
    for (const auto& results : of_ranks) {
      CHECK(same(results[0], results[2]));
      CHECK_FALSE(same(results[0], results[1]));
      CHECK(same(results[2], of_ranks[0][2]));
    }
  }
  // More ranks than wrote it, and one: the matrices are everybody's, errors of those that were there.
  for (const int world : {3, 1}) {
    const auto finite = results_of_ranks<int>(world, [&](const PartialState& state) {
      Ddp<> accelerator{state, in_many_buckets()};
      auto net = std::make_shared<Matrices>();
      torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      accelerator.load_state(folder.path() / "warm");
      train(accelerator, model, optimizer, 4, 6);
      return int(torch::isfinite(net->first->weight).all().item<bool>());
    });
    CHECK(finite == std::vector<int>(static_cast<size_t>(world), 1));
  }
}

TEST_CASE("PowerSGD goes on where a training is converted") {
  const auto of_ranks =
      results_of_ranks<std::vector<std::vector<at::Tensor>>>(2, [&](const PartialState& state) {
        std::vector<std::vector<at::Tensor>> results;
        for (const bool converts : {false, true}) {
          Ddp<> accelerator{state, in_many_buckets()};
          auto net = std::make_shared<Matrices>();
          torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
          auto [model, optimizer] = accelerator.prepare(net, adamw);
          train(accelerator, model, optimizer, 0, 4);
          if (converts) {
            auto [next, handles] = accelerator.convert<Ddp<accel::accumulate<1>>>(model, optimizer);
            auto& [model2, optimizer2] = handles;
            train(next, model2, optimizer2, 4, 8);
          } else {
            train(accelerator, model, optimizer, 4, 8);
          }
          results.push_back(weights_of(*net));
        }
        return results;
      });
  for (const auto& results : of_ranks) CHECK(same(results[0], results[1]));
}

TEST_CASE("PowerSGD forgets an overflow: one step is skipped, and the training goes on") {
  struct Outcome {
    int skipped = 0;
    std::vector<at::Tensor> weights;
  };
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    auto options = in_many_buckets();
    options.grad_scaler = {.init_scale = 1024, .growth_interval = 1000};
    accel::Accelerator<accel::ddp, accel::fp16, accel::accumulate<1>, accel::on<accel::cpu>>
        accelerator{state, options};
    auto net = std::make_shared<Matrices>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-2));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Outcome outcome;
    for (uint64_t step = 0; step < 10; ++step)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        const auto loss = model(draw({8, 16}, 100 + step)).pow(2).mean();
        const bool overflows = step == 5 && state.process_index() == 1;
        accelerator.backward(overflows ? loss * INFINITY : loss);
        optimizer.step();
        optimizer.zero_grad();
        outcome.skipped += optimizer.step_was_skipped();
      });
    outcome.weights = weights_of(*net);
    return outcome;
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.skipped == 1);
    CHECK(same(outcome.weights, outcomes[0].weights));
    for (const auto& weight : outcome.weights) CHECK(torch::isfinite(weight).all().item<bool>());
  }
}

TEST_CASE("PowerSGD takes up no tensors that are not of a state") {
  accel::PowerSgd memory({});
  memory.load_state({{"iterations", torch::tensor(int64_t{5})},
                     {"w.q", torch::ones({3, 1})},
                     {"w.error", torch::ones({2, 3})}});
  CHECK(memory.state().size() == 3);
  CHECK_THROWS_WITH(memory.load_state({{"w.p", torch::ones({3, 1})}}),
                    ContainsSubstring("'w.p' is no tensor of a state of PowerSGD"));
  CHECK_THROWS_WITH(memory.load_state({{"iterations", torch::ones({})}}),
                    ContainsSubstring("iterations"));
  CHECK(memory.state().size() == 3);
  memory.load_state(memory.state(), /*own=*/false);
  CHECK(memory.state().size() == 2);
}
