// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The optimizer of a sharded model is the user's own, made before or after prepare: groups, options and
// state are where the user put them.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <cmath>

using accel::PartialState;
using accel::test::results_of_ranks;

namespace {

/// Two weights of four, whose gradients are 1.
struct TwoWeights : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::zeros({4}));
  at::Tensor b = register_parameter("b", torch::zeros({4}));
  at::Tensor forward() { return a.sum() + b.sum(); }
};

using Stages = std::tuple<accel::ddp, accel::sharded<accel::zero1>, accel::sharded<accel::zero2>,
                          accel::sharded<accel::zero3>, accel::sharded<accel::fsdp_zero2>,
                          accel::sharded<accel::hybrid<accel::zero3>>>;

template <class Backend>
accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>> made(
    const PartialState& state) {
  accel::AcceleratorOptions options;
  options.sharded.group_size = 2;
  return accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>(
      state, options);
}

/// An optimizer with a group for each weight.
template <class Optimizer, class Options>
Optimizer with_groups(const TwoWeights& net, double rate_of_a, double rate_of_b) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{net.a}, std::make_unique<Options>(rate_of_a));
  groups.emplace_back(std::vector{net.b}, std::make_unique<Options>(rate_of_b));
  return Optimizer(groups, Options(1.0));
}

/// What a rank has in the end: the weights, and the groups.
struct Outcome {
  std::vector<double> a, b, rates;
  std::vector<size_t> sizes;  ///< of the groups
};

std::vector<double> values_of(const at::Tensor& tensor) {
  const auto wide = tensor.detach().to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

template <class Optimizer>
Outcome outcome_of(const TwoWeights& net, Optimizer& optimizer) {
  Outcome outcome{values_of(net.a), values_of(net.b), {}, {}};
  for (const auto& group : optimizer.param_groups()) {
    outcome.rates.push_back(group.options().get_lr());
    outcome.sizes.push_back(group.params().size());
  }
  return outcome;
}

/// One step, at rates of 0.1 and 0.01.
void check_stepped_by_group(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes) {
    CHECK(outcome.a.size() == 4);
    CHECK(outcome.b.size() == 4);
    for (const auto value : outcome.a) CHECK(value == Catch::Approx(-0.1));
    for (const auto value : outcome.b) CHECK(value == Catch::Approx(-0.01));
  }
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("B34 an optimizer built before prepare steps the sharded weights, by group",
                        "", Stages) {
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    auto accelerator = made<TestType>(state);
    auto net = std::make_shared<TwoWeights>();
    auto sgd = with_groups<torch::optim::SGD, torch::optim::SGDOptions>(*net, 0.1, 0.01);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model());
    optimizer.step();
    optimizer.zero_grad();
    return outcome_of(*net, optimizer);
  });
  check_stepped_by_group(outcomes);
  for (const auto& outcome : outcomes) {
    CHECK(outcome.rates == std::vector{0.1, 0.01});
    CHECK(outcome.sizes == std::vector<size_t>{1, 1});
  }
}

TEMPLATE_LIST_TEST_CASE("an optimizer's state from steps before prepare is gone on with", "",
                        Stages) {
  const auto train = [](bool whole) {
    return results_of_ranks<Outcome>(2, [whole](const PartialState& state) {
      auto net = std::make_shared<TwoWeights>();
      auto adamw = with_groups<torch::optim::AdamW, torch::optim::AdamWOptions>(*net, 0.1, 0.01);
      const auto alone = [&](double factor) {
        (net->forward() * factor).backward();
        adamw.step();
        net->zero_grad();
      };
      for (const double factor : {1.0, 3.0, -2.0}) alone(factor);
      if (whole) {
        for (const double factor : {5.0, -1.0}) alone(factor);
        return outcome_of(*net, adamw);
      }
      auto accelerator = made<TestType>(state);
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      for (const double factor : {5.0, -1.0}) {
        accelerator.backward(model() * factor);
        optimizer.step();
        optimizer.zero_grad();
      }
      return outcome_of(*net, optimizer);
    });
  };
  const auto expected = train(true), found = train(false);
  for (size_t rank = 0; rank < 2; ++rank)
    for (size_t i = 0; i < 4; ++i) {
      CHECK(found[rank].a[i] == Catch::Approx(expected[rank].a[i]).epsilon(1e-5));
      CHECK(found[rank].b[i] == Catch::Approx(expected[rank].b[i]).epsilon(1e-5));
    }
}

TEMPLATE_LIST_TEST_CASE("a group that is added after prepare is stepped too", "", Stages) {
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    auto accelerator = made<TestType>(state);
    auto net = std::make_shared<TwoWeights>();
    torch::optim::SGD sgd(std::vector{net->a}, torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    sgd.add_param_group(torch::optim::OptimizerParamGroup(
        std::vector{net->b}, std::make_unique<torch::optim::SGDOptions>(0.01)));
    accelerator.backward(model());
    optimizer.step();
    optimizer.zero_grad();
    return outcome_of(*net, optimizer);
  });
  check_stepped_by_group(outcomes);
}

TEMPLATE_LIST_TEST_CASE("norms of every type are those of ddp, also where a rank has no part", "",
                        Stages) {
  // A sum of 1 to 8, so that the first norms are known; `b` alone is smaller than the ranks are many.
  struct Net : torch::nn::Module {
    at::Tensor a = register_parameter("a", torch::zeros({7}));
    at::Tensor b = register_parameter("b", torch::zeros({1}));
    at::Tensor forward() { return (a * torch::arange(1, 8)).sum() - 8 * b.sum(); }
  };
  const auto found = results_of_ranks<std::vector<double>>(2, [](const PartialState& state) {
    auto accelerator = made<TestType>(state);
    auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model());
    std::vector<double> norms;
    for (const double type : {1.0, 2.0, 3.0, double(INFINITY), -double(INFINITY)})
      norms.push_back(accelerator.grad_norm(model, type).template item<double>());
    accelerator.clip_grad_norm_(model, 3.6, 1.0);
    norms.push_back(accelerator.grad_norm(model, 1.0).template item<double>());
    accelerator.clip_grad_value_(model, 0.25);
    norms.push_back(accelerator.grad_norm(model, INFINITY).template item<double>());
    optimizer.step();
    for (const auto value : values_of(net->a)) norms.push_back(value);
    return norms;
  });
  const std::vector<double> expected{36,
                                     std::sqrt(204.0),
                                     std::cbrt(1296.0),
                                     8,
                                     1,
                                     3.6,
                                     0.25,
                                     -0.1,
                                     -0.2,
                                     -0.25,
                                     -0.25,
                                     -0.25,
                                     -0.25,
                                     -0.25};
  for (const auto& norms : found) {
    REQUIRE(norms.size() == expected.size());
    for (size_t i = 0; i < norms.size(); ++i) {
      CAPTURE(i);
      CHECK(norms[i] == Catch::Approx(expected[i]).epsilon(1e-5));
    }
  }
}
