// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Fused kernels against the optimizers' own steps, schedules, and what a prepared optimizer leaves
// to the user's object.
#include "support/counted_operators.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using namespace accel;
using Single = Accelerator<single, fp32, accumulate<1>, on<cpu>>;

namespace {

torch::nn::Sequential small_net() {
  torch::manual_seed(7);
  return torch::nn::Sequential(torch::nn::Linear(5, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
}

/// Weights after 30 steps, some of which leave the last layer without gradients.
template <class Optimizer, class Options>
std::vector<at::Tensor> trained(const Options& options, bool prepared) {
  auto net = small_net();
  Optimizer own(net->parameters(), options);
  Single accelerator;
  auto optimizer = accelerator.prepare(own);
  torch::manual_seed(3);
  for (int step = 0; step < 30; ++step) {
    const auto x = torch::randn({4, 5});
    own.zero_grad();
    auto loss = step % 5 == 0 ? net[0]->as<torch::nn::Linear>()->forward(x).pow(2).mean()
                              : net->forward(x).pow(2).mean();
    loss.backward();
    prepared ? optimizer.step() : static_cast<void>(own.step());
  }
  return net->parameters();
}

template <class Optimizer, class Options>
void compare(const Options& options) {
  const auto ours = trained<Optimizer>(options, true), theirs = trained<Optimizer>(options, false);
  for (size_t i = 0; i < ours.size(); ++i) CHECK(torch::allclose(ours[i], theirs[i], 1e-5, 1e-6));
}

}  // namespace

TEST_CASE("fused kernels step as the optimizers' own loops do, to rounding") {
  using namespace torch::optim;
  compare<SGD>(SGDOptions(0.05));
  compare<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  compare<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true));
  compare<Adam>(AdamOptions(1e-2).weight_decay(0.01));
  compare<Adam>(AdamOptions(1e-2).amsgrad(true));
  compare<AdamW>(AdamWOptions(1e-2));
  compare<AdamW>(AdamWOptions(1e-2).amsgrad(true));
  compare<Adagrad>(AdagradOptions(1e-2).lr_decay(0.1));
}

TEST_CASE("a step of a prepared optimizer is one call of its fused kernel") {
  const auto calls = []<class Optimizer>(std::type_identity<Optimizer>, const auto& options,
                                         const std::string& kernel) {
    auto net = small_net();
    Optimizer own(net->parameters(), options);
    Single accelerator;
    auto optimizer = accelerator.prepare(own);
    const test::CountedOperators kernels(kernel);
    for (int step = 0; step < 3; ++step) {
      net->forward(torch::ones({2, 5})).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    return kernels.count();
  };
  using namespace torch::optim;
  CHECK(calls(std::type_identity<SGD>(), SGDOptions(0.1), "aten::_fused_sgd_") == 3);
  CHECK(calls(std::type_identity<Adam>(), AdamOptions(0.1), "aten::_fused_adam_") == 3);
  CHECK(calls(std::type_identity<AdamW>(), AdamWOptions(0.1), "aten::_fused_adamw_") == 3);
  CHECK(calls(std::type_identity<Adagrad>(), AdagradOptions(0.1), "aten::_fused_adagrad_") == 3);
  CHECK(calls(std::type_identity<RMSprop>(), RMSpropOptions(0.1), "aten::_fused") == 0);
}

TEST_CASE("an optimizer without a fused kernel runs as it is") {
  compare<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3));
}

TEST_CASE("the user's optimizer stays right: its own step goes on where the fused one stopped") {
  auto net = small_net();
  torch::optim::AdamW own(net->parameters(), torch::optim::AdamWOptions(1e-2));
  Single accelerator;
  auto optimizer = accelerator.prepare(own);
  const auto x = torch::ones({2, 5});
  for (int step = 0; step < 4; ++step) {
    own.zero_grad();
    net->forward(x).sum().backward();
    step < 2 ? optimizer.step() : static_cast<void>(own.step());
  }
  const auto& state = static_cast<torch::optim::AdamWParamState&>(
      *own.state().at(net->parameters()[0].unsafeGetTensorImpl()));
  CHECK(state.step() == 4);
  for (auto& group : own.param_groups()) group.options().set_lr(0);
  const auto before = net->parameters()[0].clone();
  own.zero_grad();
  net->forward(x).sum().backward();
  optimizer.step();  // reads the group's lr at each step
  CHECK(torch::equal(before, net->parameters()[0]));
}

TEST_CASE("sparse gradients fall back to the optimizer's own step") {
  auto embedding = torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 2).sparse(true));
  torch::optim::Adagrad own(embedding->parameters(), torch::optim::AdagradOptions(0.1));
  Single accelerator;
  auto [model, optimizer] = accelerator.prepare(embedding, own);
  const auto before = embedding->weight.clone();
  accelerator.backward(model(torch::tensor({1, 3})).sum());
  optimizer.step();
  const auto changed = (before != embedding->weight).any(1).nonzero().flatten();
  CHECK(torch::equal(changed, torch::tensor({1, 3})));
}

TEST_CASE("a parameter under two names is stepped once") {
  struct Tied : torch::nn::Module {
    Tied() {
      auto weight = register_parameter("first", torch::ones({1}));
      register_parameter("second", weight);
    }
  };
  auto net = std::make_shared<Tied>();
  REQUIRE(net->parameters().size() == 2);
  torch::optim::SGD own(net->parameters(), 0.1);
  Single accelerator;
  auto [model, optimizer] = accelerator.prepare(net, own);
  CHECK(unique_parameters(*net).size() == 1);
  accelerator.backward(net->parameters()[0].sum());
  optimizer.step();
  CHECK(net->parameters()[0].item<float>() == Catch::Approx(0.9f));
}

TEST_CASE("B32 set-to-none and zero-fill differ where there is momentum") {
  for (const bool set_to_none : {true, false}) {
    auto w = torch::zeros({1}).requires_grad_();
    torch::optim::SGD own({w}, torch::optim::SGDOptions(0.1).momentum(0.9));
    Single accelerator;
    auto optimizer = accelerator.prepare(own);
    w.sum().backward();
    optimizer.step();
    optimizer.zero_grad(set_to_none);
    optimizer.step();
    CHECK(w.item<float>() == Catch::Approx(set_to_none ? -0.1f : -0.19f));
  }
}

TEST_CASE("a group added after prepare is stepped and cleared too") {
  auto a = torch::zeros({1}).requires_grad_(), b = torch::zeros({1}).requires_grad_();
  torch::optim::SGD own({a}, 1.0);
  Single accelerator;
  auto optimizer = accelerator.prepare(own);
  own.add_param_group(torch::optim::OptimizerParamGroup({b}));
  (a + b).sum().backward();
  optimizer.step();
  optimizer.zero_grad();
  CHECK(b.item<float>() == -1.0f);
  CHECK_FALSE(b.grad().defined());
}

TEST_CASE("a schedule waits for its own optimizer's skip only") {
  Accelerator<single, fp16, accumulate<1>, on<cpu>> accelerator;
  auto a = torch::zeros({1}).requires_grad_(), b = torch::zeros({1}).requires_grad_();
  torch::optim::SGD first({a}, 1.0), second({b}, 1.0);
  auto [one, two, schedule] =
      accelerator.prepare(first, second, StepLR(second, {.step_size = 1, .gamma = 0.5}));
  accelerator.backward((a * std::numeric_limits<float>::infinity() + b).sum());
  one.step();
  two.step();
  schedule.step();
  CHECK(one.step_was_skipped());
  CHECK_FALSE(two.step_was_skipped());
  CHECK(schedule->get_last_lr().front() == 0.5);
}

TEST_CASE("schedules have their formulas' values") {
  torch::optim::SGD own({torch::zeros({1})}, 1.0);
  const auto rates = [&](auto schedule, int steps) {
    std::vector<double> values{schedule.get_last_lr().front()};
    for (int i = 0; i < steps; ++i) {
      schedule.step();
      values.push_back(schedule.get_last_lr().front());
    }
    own.param_groups().front().options().set_lr(1.0);
    return values;
  };
  CHECK(rates(StepLR(own, {.step_size = 2, .gamma = 0.5}), 4) ==
        std::vector<double>{1, 1, 0.5, 0.5, 0.25});
  CHECK(rates(linear_schedule(own, 6, 2), 7) ==
        std::vector<double>{0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0});
  const auto cosine = rates(cosine_schedule(own, 4), 5);
  CHECK(cosine[2] == Catch::Approx(0.5));
  CHECK(cosine[4] == Catch::Approx(0.0).margin(1e-12));
  CHECK(cosine[5] == Catch::Approx(0.0).margin(1e-12));
  CHECK_THROWS_AS(cosine_schedule(own, 4, 5), Error);
}
