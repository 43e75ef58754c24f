// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Models drawn at random: trees of layers of odd sizes, one-element and empty parameters, shared and
// frozen layers, layers that some steps leave out; worlds, stages, units, accumulation and clipping
// drawn too. Three steps of each are those of ddp.
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <cstdlib>
#include <random>

using accel::PartialState;
using accel::test::results_of_ranks;

namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t upto(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(engine_); }
  bool one_in(int64_t times) { return upto(times - 1) == 0; }

 private:
  std::mt19937 engine_;
};

/// A layer of some kind that keeps the width.
struct Layer : torch::nn::Module {
  Layer(Random& random, int64_t width) : kind(random.upto(4)), skipped(random.one_in(4)) {
    switch (kind) {
      case 0: linear = register_module("linear", torch::nn::Linear(width, width)); break;
      case 1: {
        const auto inner = 1 + random.upto(12);
        down = register_module("down", torch::nn::Linear(width, inner));
        linear = register_module(
            "linear", torch::nn::Linear(torch::nn::LinearOptions(inner, width).bias(false)));
        break;
      }
      case 2:
        norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
        break;
      case 3: scale = register_parameter("scale", torch::ones({})); break;
      default: empty = register_parameter("empty", torch::zeros({0, width})); break;
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    if (norm) return norm(x);
    if (scale.defined()) return x * scale;
    if (empty.defined()) return x + empty.sum(0);
    return at::tanh(linear(down ? at::relu(down(x)) : x)) + x;
  }
  int64_t kind;
  bool skipped;  ///< in every second step
  torch::nn::Linear linear{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  at::Tensor scale, empty;
};

/// A tree of lists of layers.
struct Tree : torch::nn::Module {
  explicit Tree(uint32_t seed) {
    Random random(seed);
    width = 1 + random.upto(20);
    const auto lists = 1 + random.upto(2);
    for (int64_t i = 0; i < lists; ++i) {
      auto list = register_module("list" + std::to_string(i), torch::nn::ModuleList());
      for (int64_t k = 0, size = 1 + random.upto(3); k < size; ++k) {
        const bool again = !order.empty() && random.one_in(6);
        const auto layer =
            again ? order[static_cast<size_t>(random.upto(static_cast<int64_t>(order.size()) - 1))]
                  : std::make_shared<Layer>(random, width);
        list->push_back(layer);
        order.push_back(layer);
        if (!again && random.one_in(6))
          for (auto& parameter : layer->parameters()) parameter.set_requires_grad(false);
      }
    }
    head = register_module("head", torch::nn::Linear(width, 1 + random.upto(6)));
  }
  at::Tensor loss(uint64_t seed, bool leaves_out) {
    auto x = accel::test::normal({5, width}, seed);
    for (const auto& layer : order)
      if (!(leaves_out && layer->skipped)) x = layer->forward(x);
    return head(x).square().mean();
  }
  int64_t width = 1;
  std::vector<std::shared_ptr<Layer>> order;
  torch::nn::Linear head{nullptr};
};

struct Draw {
  uint32_t seed;
  int ranks, micro_batches, group_size;
  int64_t min_num_params;
  bool clips, momentum;

  explicit Draw(uint32_t of) : seed(of) {
    Random random(of + 1);
    ranks = static_cast<int>(2 + random.upto(2));
    micro_batches = static_cast<int>(1 + random.upto(2));
    group_size = ranks == 4 ? 2 : 1;
    min_num_params = 1 + random.upto(400);
    clips = random.one_in(2);
    momentum = random.one_in(2);
  }
};

template <class Backend>
std::vector<at::Tensor> train(const PartialState& state, const Draw& draw) {
  accel::AcceleratorOptions options;
  options.gradient_accumulation_steps = draw.micro_batches;
  options.ddp.find_unused_parameters = true;
  options.sharded = {.min_num_params = draw.min_num_params, .group_size = draw.group_size};
  accel::Accelerator<Backend, accel::fp32, accel::accumulate<accel::dynamic>, accel::on<accel::cpu>>
      accelerator(state, options);
  const auto tree = std::make_shared<Tree>(draw.seed);
  accel::test::fill_parameters(*tree, draw.seed);
  const auto parameters = accel::unique_tensors(tree->parameters());
  torch::optim::SGD sgd(parameters,
                        torch::optim::SGDOptions(0.05).momentum(draw.momentum ? 0.9 : 0.0));
  auto [model, optimizer] = accelerator.prepare(tree, sgd);
  std::vector<at::Tensor> result;
  for (int step = 0; step < 3; ++step)
    for (int micro = 0; micro < draw.micro_batches; ++micro)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        const auto loss = model->loss(
            static_cast<uint64_t>(100 * step + 10 * micro + state.process_index()), step % 2 == 1);
        result.push_back(loss.detach());
        accelerator.backward(loss);
        if (draw.clips && accelerator.sync_gradients())
          result.push_back(accelerator.clip_grad_norm_(model, 0.1));
        optimizer.step();
        optimizer.zero_grad();
      });
  for (const auto& parameter : parameters) result.push_back(parameter.detach().clone());
  return result;
}

template <class Backend>
void compare(const Draw& draw, const std::vector<std::vector<at::Tensor>>& reference) {
  const auto found = results_of_ranks<std::vector<at::Tensor>>(
      draw.ranks, [&](const PartialState& state) { return train<Backend>(state, draw); });
  for (size_t rank = 0; rank < found.size(); ++rank)
    for (size_t i = 0; i < found[rank].size(); ++i) {
      INFO("draw " << draw.seed << ", " << Backend::name << ", rank " << rank << " of "
                   << draw.ranks << ", value " << i);
      REQUIRE(found[rank].size() == reference[rank].size());
      // Where sums are in ddp's order, its bits.
      if (draw.micro_batches == 1 && !draw.clips && !Backend::hybrid)
        REQUIRE(at::equal(found[rank][i], reference[rank][i]));
      else
        REQUIRE(at::allclose(found[rank][i], reference[rank][i], 1e-5, 1e-6));
    }
}

}  // namespace

TEST_CASE("random models train sharded as with ddp") {
  const char* asked = std::getenv("ACCEL_RANDOM_MODELS");
  const int draws = asked ? std::atoi(asked) : 40;
  const auto first = asked ? Catch::getSeed() : 20;
  for (int i = 0; i < draws; ++i) {
    const Draw draw(first + static_cast<uint32_t>(i));
    const auto reference = results_of_ranks<std::vector<at::Tensor>>(
        draw.ranks, [&](const PartialState& state) { return train<accel::ddp>(state, draw); });
    switch (draw.seed / 7 % 6) {
      case 0: compare<accel::sharded<accel::zero3>>(draw, reference); break;
      case 1: compare<accel::sharded<accel::zero3, accel::wrap_by_size>>(draw, reference); break;
      case 2: compare<accel::sharded<accel::zero2, accel::wrap_by_size>>(draw, reference); break;
      case 3: compare<accel::sharded<accel::zero1>>(draw, reference); break;
      case 4: compare<accel::shard_grad_op>(draw, reference); break;
      default:
        compare<accel::sharded<accel::hybrid<accel::zero3>, accel::wrap_by_size>>(draw, reference);
        break;
    }
  }
}
