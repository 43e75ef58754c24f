// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// activation_memory: bytes worked out by hand, and a module that is as it was afterwards.
// distributed.memory compares with what a step asks LibTorch's allocator for.
#include "support/small_models.hpp"

#include <accel/engine/activation_memory.hpp>
#include <accel/engine/deferred_init.hpp>

#include <catch2/catch_all.hpp>
#include <torch/torch.h>

using accel::activation_memory;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr int64_t width = 32, batch = 16;
constexpr int64_t activation = batch * width * 4;

at::Tensor on_meta(at::IntArrayRef sizes) {
  return torch::empty(sizes, torch::dtype(torch::kFloat).device(torch::kMeta));
}

}  // namespace

TEST_CASE("activation memory of layers, by hand") {
  auto net = accel::deferred_init([] {
    return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::Tanh(),
                                 torch::nn::Linear(width, width), torch::nn::Tanh());
  });
  const auto x = on_meta({batch, width});
  const auto memory = activation_memory(*net, [&] { return net->forward(x).sum(); });
  // Two results of tanh are kept, and the scalar. The input is the caller's. In the second layer's
  // backward there is the first result still, the gradient of the layer's output, that of its input,
  // and before it is accumulated that of its weight, with little beside.
  constexpr int64_t weight = width * width * 4;
  CHECK(memory.kept == 2 * activation + 4);
  CHECK(memory.peak >= 3 * activation + weight);
  CHECK(memory.peak < 3 * activation + weight + 1024);
  // Twice the batch, twice the bytes.
  const auto longer = on_meta({2 * batch, width});
  CHECK(activation_memory(*net, [&] { return net->forward(longer).sum(); }).kept ==
        4 * activation + 4);
}

TEST_CASE("a dry run leaves the module as it was: values, statistics, gradients") {
  torch::manual_seed(5);
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::BatchNorm1d(width),
                                 torch::nn::Dropout(0.5));
  };
  auto plain = make();
  torch::manual_seed(5);
  auto net = accel::deferred_init(make);
  const auto state = at::detail::getDefaultCPUGenerator().get_state();
  const auto x = on_meta({batch, width});
  CHECK(activation_memory(*net, [&] { return net->forward(x).sum(); }).kept > activation);
  CHECK(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
  for (const auto& parameter : net->parameters()) CHECK(!parameter.grad().defined());
  accel::materialize(*net);
  for (const auto& item : plain->named_parameters())
    CHECK(at::equal(item.value(), net->named_parameters()[item.key()]));
  for (const auto& item : plain->named_buffers())
    CHECK(at::equal(item.value(), net->named_buffers()[item.key()]));
}

TEST_CASE("what was there before is not counted, and stays: other tensors, gradients") {
  auto layer = accel::deferred_init([] { return torch::nn::Linear(width, 1); });
  const auto other = on_meta({1000, 1000});
  const auto gradient = on_meta({1, width});
  layer->weight.mutable_grad() = gradient;
  const auto x = on_meta({batch, width});
  const auto memory = activation_memory(*layer, [&] { return layer(x).mean(); });
  CHECK(memory.kept <= batch * 4 + 8);
  CHECK(memory.peak > 0);
  CHECK(memory.peak < 1000);
  CHECK(layer->weight.grad().is_same(gradient));
  // A run that throws leaves it so too, and the next one counts alone.
  at::Tensor outlives;
  CHECK_THROWS_WITH(activation_memory(*layer,
                                      [&]() -> at::Tensor {
                                        outlives = layer(x);
                                        throw std::runtime_error("the user's");
                                      }),
                    "the user's");
  CHECK(layer->weight.grad().is_same(gradient));
  CHECK(activation_memory(*layer, [&] { return layer(x).mean(); }).kept == memory.kept);
}

TEST_CASE("models of every kind run on meta, and take what the same step takes on the CPU") {
  using namespace accel::test;
  const auto ids = torch::empty({2, 16}, torch::dtype(torch::kLong).device(torch::kMeta));
  auto cnn = accel::deferred_init([] { return std::make_shared<SmallCnn>(); });
  const auto images = on_meta({8, 3, 12, 12});
  const auto of_cnn = activation_memory(*cnn, [&] { return cnn->forward(images).square().mean(); });
  // Of each convolution its output, which normalization saves, the normalized, and what relu gives.
  const int64_t first = 8 * 16 * 12 * 12 * 4, second = 8 * 32 * 5 * 5 * 4;
  CHECK(of_cnn.kept >= 2 * first + 2 * second);
  CHECK(of_cnn.kept <= 3 * first + 4 * second);
  auto rnn = accel::deferred_init([] { return std::make_shared<SmallRnn>(); });
  CHECK(activation_memory(*rnn, [&] { return rnn->forward(ids).square().mean(); }).kept > 0);
  accel::materialize(*cnn);
  CHECK(cnn->loss(1).isfinite().item<bool>());
}

TEST_CASE("activation memory: what is wrong is said") {
  torch::nn::Linear whole(width, 1);
  CHECK_THROWS_WITH(activation_memory(*whole, [] { return at::Tensor(); }),
                    ContainsSubstring("the parameter 'weight' is on cpu"));
  auto layer = accel::deferred_init([] { return torch::nn::Linear(width, 1); });
  const auto x = on_meta({batch, width});
  CHECK_THROWS_WITH(activation_memory(*layer, [&] { return layer(x); }),
                    ContainsSubstring("and was given a tensor of sizes [16, 1]"));
  CHECK_THROWS_WITH(activation_memory(*layer, [] { return at::Tensor(); }),
                    ContainsSubstring("and was given none"));
  CHECK_THROWS(activation_memory(*layer, [&] { return layer(x).mean() * layer(x).item<float>(); }));
  // How many there are depends on values.
  CHECK_THROWS(activation_memory(*layer, [&] { return layer(x).masked_select(x > 0).mean(); }));
  CHECK_THROWS(
      activation_memory(*layer, [&] { return layer(x).index({x.select(1, 0) > 0}).mean(); }));
}
