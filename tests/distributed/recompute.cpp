// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Recomputed blocks have the gradients of plain ones, to the bit: with dropout, under autocast, in
// nested results, under ddp and under every stage of sharded.
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::recompute;
using accel::test::results_of_ranks;
using Tensors = std::vector<at::Tensor>;

namespace {

Tensors gradients(torch::nn::Module& module, const std::function<at::Tensor()>& loss) {
  module.zero_grad();
  torch::manual_seed(3);
  loss().backward();
  Tensors found;
  for (const auto& parameter : module.parameters()) found.push_back(parameter.grad().clone());
  return found;
}

void check_equal(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(at::equal(a[i], b[i]));
}

}  // namespace

TEST_CASE(
    "recomputed layers: the gradients of a plain call, also with dropout and under autocast") {
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Dropout(0.5),
                            torch::nn::Linear(8, 3));
  accel::test::fill_parameters(*net);
  const auto x = accel::test::normal({4, 6}, 1);  // needs no gradient itself
  const auto plain = gradients(*net, [&] { return net->forward(x).square().sum(); });
  check_equal(plain, gradients(*net, [&] { return recompute(net, x).square().sum(); }));
  check_equal(plain, gradients(*net, [&] { return recompute(*net, x).square().sum(); }));
  check_equal(plain, gradients(*net, [&] { return recompute(net.ptr(), x).square().sum(); }));
  check_equal(
      plain, gradients(*net, [&] {
        return recompute([&](const at::Tensor& in) { return net->forward(in).square(); }, x).sum();
      }));

  const auto cast = [&](bool again, bool and_plain) {
    return gradients(*net, [&] {
      const accel::AutocastScope scope(at::kCPU, at::kBFloat16);
      auto y = (again ? recompute(net, x) : net->forward(x)).to(at::kFloat);
      if (and_plain) y = y + net->forward(x).to(at::kFloat);
      return y.square().sum();
    });
  };
  check_equal(cast(false, false), cast(true, false));
  // The cast weights of a recomputed call are not those of a later plain one, which has its graph.
  const auto both = cast(false, true), mixed = cast(true, true);
  for (size_t i = 0; i < both.size(); ++i) CHECK(at::allclose(both[i], mixed[i], 0.05, 0.05));
}

TEST_CASE("recomputed: random numbers after it are those after a plain call") {
  torch::nn::Dropout dropout(0.5);
  const auto x = at::ones({16}).requires_grad_(true);
  const auto after = [&](bool again) {
    torch::manual_seed(5);
    const auto y = again ? recompute(dropout, x) : dropout(x);
    const auto between = torch::rand({4});
    y.sum().backward();
    return at::cat({y.detach(), between, torch::rand({4})});
  };
  CHECK(at::equal(after(false), after(true)));
}

TEST_CASE("recomputed: several inputs and nested results, some of them unused or no numbers") {
  const auto a = accel::test::normal({3}, 1).requires_grad_(true);
  const auto b = accel::test::normal({3}, 2);
  const auto [sum, rest] = recompute(
      [](const at::Tensor& p, const at::Tensor& q) {
        return std::tuple{(p * q).sum(), Tensors{p.exp(), (p > 0).sum(), p}};
      },
      a, b);
  CHECK(!rest[1].requires_grad());
  (sum + rest[0].sum() * 2 + rest[2].sum()).backward();
  CHECK(at::allclose(a.grad(), b + 2 * a.detach().exp() + 1));
}

TEST_CASE("recomputed: no graph without gradients; a second backward and a second derivative are "
          "refused") {
  torch::nn::Linear layer(2, 2);
  const auto x = at::ones({1, 2});
  {
    const at::NoGradGuard no_grad;
    CHECK(!recompute(layer, x).requires_grad());
  }
  const auto once = recompute(layer, x).sum();
  once.backward();
  CHECK_THROWS_WITH(once.backward(), Catch::Matchers::ContainsSubstring("retain_graph = true"));
  const auto kept = recompute(layer, x).sum();
  kept.backward({}, /*retain_graph=*/true);
  CHECK_NOTHROW(kept.backward());
  const auto twice = recompute(layer, x).sum();
  CHECK_THROWS_WITH(twice.backward({}, true, /*create_graph=*/true),
                    Catch::Matchers::ContainsSubstring("no second derivative"));
}

namespace {

/// A GPT whose blocks are recomputed, or not.
struct Gpt : accel::test::SmallGpt {
  explicit Gpt(bool recomputed) : again(recomputed) {}
  at::Tensor forward(const at::Tensor& ids) {
    auto x = embedding(ids) + position(at::arange(ids.size(1)));
    for (const auto& each : *blocks_) {
      const auto block = std::dynamic_pointer_cast<accel::test::SmallBlockImpl>(each);
      x = again ? recompute(block, x) : block->forward(x);
    }
    return torch::nn::functional::linear(norm(x), embedding->weight);
  }
  bool again;
};

template <class Backend>
Tensors train(const PartialState& state, bool again) {
  accel::Accelerator<Backend, accel::fp32, accel::accumulate<2>, accel::on<accel::cpu>> accelerator(
      state);
  const auto net = std::make_shared<Gpt>(again);
  accel::test::fill_parameters(*net);
  const auto parameters = accel::unique_tensors(net->parameters());
  torch::optim::AdamW adamw(parameters, torch::optim::AdamWOptions(1e-2));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (uint64_t step = 0; step < 6; ++step)
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      const auto ids = accel::test::tokens(
          97, {2, 17}, 10 * step + static_cast<uint64_t>(state.process_index()));
      accelerator.backward(torch::nn::functional::cross_entropy(
          model->forward(ids.narrow(1, 0, 16)).reshape({-1, 97}),
          ids.narrow(1, 1, 16).reshape({-1})));
      optimizer.step();
      optimizer.zero_grad();
    });
  Tensors weights;
  for (const auto& parameter : parameters) weights.push_back(parameter.detach().clone());
  return weights;
}

}  // namespace

TEMPLATE_TEST_CASE("recomputed blocks train as plain ones on two ranks", "", accel::ddp,
                   accel::sharded<accel::zero1>, accel::sharded<accel::zero3>,
                   accel::shard_grad_op) {
  const auto weights = [](bool again) {
    return results_of_ranks<Tensors>(
        2, [again](const PartialState& state) { return train<TestType>(state, again); });
  };
  const auto plain = weights(false), recomputed = weights(true);
  for (size_t rank = 0; rank < plain.size(); ++rank) check_equal(plain[rank], recomputed[rank]);
}
