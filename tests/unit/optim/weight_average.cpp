// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The moving average of weights: PyTorch's formula, the scope that applies it, and its state; and
// seeds, of which the same one gives the same numbers.
#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using namespace accel;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::tensor({1.0f, 2.0f}));
  at::Tensor steps = register_buffer("steps", torch::zeros({}, torch::kLong));
};

void set(Weight& net, float value) {
  const torch::NoGradGuard no_grad;
  net.w.fill_(value);
}

}  // namespace

TEST_CASE("the average is AveragedModel's: the first update copies, later ones move") {
  // torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)), with the
  // weights 10, 20, 0 at its updates: 10, 11, 9.9.
  auto net = std::make_shared<Weight>();
  ExponentialMovingAverage average(net, 0.9);
  const std::vector<std::pair<float, float>> expected{{10.f, 10.f}, {20.f, 11.f}, {0.f, 9.9f}};
  for (const auto& [weight, mean] : expected) {
    set(*net, weight);
    average.update();
    CHECK(average.averages()[0].second[0].item<float>() == Catch::Approx(mean).epsilon(1e-6));
  }
  CHECK(average.updates() == 3);
  CHECK_THROWS_WITH(ExponentialMovingAverage(net, 1.0), ContainsSubstring("decay"));
}

TEST_CASE("inside the scope the module has the averages, and after it the trained weights") {
  auto net = std::make_shared<Weight>();
  ExponentialMovingAverage average(net, 0.5);
  set(*net, 4);
  average.update();
  set(*net, 8);
  average.update();
  const auto same = net->w;
  {
    const auto applied = average.apply();
    CHECK(net->w[0].item<float>() == 6.0f);
    CHECK(net->w.is_same(same));
  }
  CHECK(net->w[0].item<float>() == 8.0f);
}

TEST_CASE("weights of 16 bits are averaged in fp32") {
  auto net = std::make_shared<Weight>();
  net->to(torch::kBFloat16);
  ExponentialMovingAverage average(net, 0.999);
  set(*net, 1);
  average.update();
  set(*net, 2);
  average.update();
  CHECK(average.averages()[0].second.scalar_type() == torch::kFloat);
  CHECK(average.averages()[0].second[0].item<float>() == Catch::Approx(1.001).epsilon(1e-6));
}

TEST_CASE("a saved average goes on, and one of another model changes nothing") {
  auto net = std::make_shared<Weight>();
  ExponentialMovingAverage first(net, 0.9), second(net, 0.9);
  set(*net, 10);
  first.update();
  second.load(first.averages(), first.updates());
  set(*net, 20);
  first.update();
  second.update();
  CHECK(torch::equal(first.averages()[0].second, second.averages()[0].second));
  CHECK_THROWS_WITH(second.load({{"v", torch::ones({2})}}, 0), ContainsSubstring("'w'"));
  CHECK_THROWS_WITH(second.load({{"w", torch::ones({3})}}, 0), ContainsSubstring("[3]"));
  CHECK(second.updates() == 2);
}

TEST_CASE("set_seed gives the same numbers, others on each rank, and deterministic kernels") {
  set_seed(3);
  const auto first = torch::rand({4});
  set_seed(3);
  CHECK(torch::equal(torch::rand({4}), first));
  set_seed(3, {.process_index = 1});
  CHECK_FALSE(torch::equal(torch::rand({4}), first));
  set_seed(2, {.process_index = 1});
  CHECK(torch::equal(torch::rand({4}), first));

  CHECK_FALSE(at::globalContext().deterministicAlgorithms());
  set_seed(3, {.deterministic = true});
  CHECK(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(false, false);
}
