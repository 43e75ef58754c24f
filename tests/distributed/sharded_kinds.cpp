// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Kinds of modules and of backward that hooks and flat parameters are known to get wrong, each against
// ddp: weights in another memory format, fused recurrent layers, attention, functions that save a
// parameter, a gradient penalty, blocks that run in another order than last time.
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::normal;
using accel::test::results_of_ranks;

namespace {

using Tensors = std::vector<at::Tensor>;

/// A loss of a step on a rank.
struct LossNet : torch::nn::Module {
  virtual at::Tensor loss(uint64_t step, uint64_t seed) = 0;
};

struct ChannelsLast : LossNet {
  torch::nn::Conv2d first = register_module("first", torch::nn::Conv2d(3, 8, 3));
  torch::nn::Conv2d second = register_module("second", torch::nn::Conv2d(8, 4, 3));
  ChannelsLast() {
    for (auto* weight : {&first->weight, &second->weight})
      weight->set_data(weight->contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor loss(uint64_t, uint64_t seed) override {
    const auto x = normal({2, 3, 9, 9}, seed).contiguous(at::MemoryFormat::ChannelsLast);
    return second(torch::relu(first(x))).pow(2).mean();
  }
};

struct Recurrent : LossNet {
  torch::nn::GRU gru = register_module(
      "gru", torch::nn::GRU(torch::nn::GRUOptions(5, 7).num_layers(2).batch_first(true)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(7, 3));
  at::Tensor loss(uint64_t, uint64_t seed) override {
    return head(std::get<0>(gru(normal({2, 4, 5}, seed)))).pow(2).mean();
  }
};

struct Attention : LossNet {
  torch::nn::TransformerEncoder encoder = register_module(
      "encoder",
      torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0), 2)));
  torch::nn::MultiheadAttention attention =
      register_module("attention", torch::nn::MultiheadAttention(8, 2));
  at::Tensor loss(uint64_t, uint64_t seed) override {
    const auto x = encoder(normal({4, 2, 8}, seed));
    return std::get<0>(attention(x, x, x)).pow(2).mean();
  }
};

/// x * w, with w saved for backward.
struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0)};
  }
};

struct OwnFunction : LossNet {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 10));
  at::Tensor scale = register_parameter("scale", torch::ones({10}));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(10, 2));
  at::Tensor loss(uint64_t, uint64_t seed) override {
    return second(Scale::apply(torch::tanh(first(normal({3, 6}, seed))), scale)).pow(2).mean();
  }
};

struct Penalty : LossNet {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 10));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(10, 1));
  at::Tensor loss(uint64_t, uint64_t seed) override {
    auto x = normal({3, 6}, seed).requires_grad_();
    const auto outputs = second(torch::tanh(first(x))).sum();
    const auto slope = torch::autograd::grad({outputs}, {x}, {}, /*retain_graph=*/true,
                                             /*create_graph=*/true)[0];
    return outputs + (slope.norm() - 1).pow(2);
  }
};

/// Blocks that run forwards in even steps, backwards in odd ones.
struct Permuted : LossNet {
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  Permuted() {
    for (int i = 0; i < 4; ++i) blocks->push_back(torch::nn::Linear(6, 6));
  }
  at::Tensor loss(uint64_t step, uint64_t seed) override {
    auto x = normal({3, 6}, seed);
    for (size_t i = 0; i < blocks->size(); ++i)
      x = torch::tanh(
          blocks[step % 2 == 0 ? i : blocks->size() - 1 - i]->as<torch::nn::Linear>()->forward(x));
    return x.pow(2).mean();
  }
};

using Kinds = std::tuple<ChannelsLast, Recurrent, Attention, OwnFunction, Penalty, Permuted>;

/// The weights after some steps, and what norm clipping found.
template <class Backend, class Net>
std::vector<Tensors> trained() {
  return results_of_ranks<Tensors>(2, [](const PartialState& state) {
    accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
        accelerator(state);
    const auto net = std::make_shared<Net>();
    accel::test::fill_parameters(*net);
    // Not AdamW: the gradient of an attention's key bias is rounding alone, which Adam makes large.
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Tensors found;
    for (uint64_t step = 0; step < 5; ++step) {
      const auto seed = 10 * step + static_cast<uint64_t>(state.process_index());
      accelerator.backward(model->loss(step, seed));
      found.push_back(accelerator.clip_grad_norm_(model, 0.5));
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& parameter : net->parameters()) found.push_back(parameter.detach().clone());
    return found;
  });
}

template <class Backend, class Net>
void check_as_ddp() {
  INFO(Backend::name);
  const auto expected = trained<accel::ddp, Net>(), found = trained<Backend, Net>();
  for (size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(found[rank].size() == expected[rank].size());
    for (size_t i = 0; i < found[rank].size(); ++i) {
      CAPTURE(rank, i);
      CHECK(at::allclose(found[rank][i].to(at::kFloat), expected[rank][i].to(at::kFloat), 1e-5,
                         1e-6));
    }
  }
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("kinds of modules and of backward train sharded as they do with ddp", "",
                        Kinds) {
  check_as_ddp<accel::sharded<accel::zero1>, TestType>();
  check_as_ddp<accel::sharded<accel::zero3>, TestType>();
  check_as_ddp<accel::sharded<accel::fsdp_zero2>, TestType>();
}
