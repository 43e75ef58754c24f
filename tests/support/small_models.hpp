// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Small models of the kinds that people train, with a loss on a batch that is drawn from a seed:
// what backends are compared on. Weights come from a seed too, whatever thread builds them.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace accel::test {

/// Draws that are the same on every thread.
inline at::Generator generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

/// Fills parameters as a layer's initialisation would, roughly: what matters is that they are the
/// same wherever the seed is.
inline void fill_parameters(torch::nn::Module& module, uint64_t seed = 1) {
  const at::NoGradGuard no_grad;
  auto numbers = generator(seed);
  for (auto& parameter : module.parameters()) {
    if (!parameter.is_floating_point() || parameter.numel() == 0) continue;
    const auto fan = parameter.dim() > 1 ? parameter.numel() / parameter.size(0) : 4;
    parameter.copy_(
        at::randn(parameter.sizes(), numbers, parameter.options().requires_grad(false)) /
        std::sqrt(static_cast<double>(fan)));
  }
}

inline at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, generator(seed), at::TensorOptions());
}
inline at::Tensor tokens(int64_t below, at::IntArrayRef sizes, uint64_t seed) {
  return at::randint(0, below, sizes, generator(seed), at::TensorOptions().dtype(at::kLong));
}

/// Linear layers, three of one size in a sequence.
struct SmallMlp : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 33));
  torch::nn::Sequential middle =
      register_module("middle", torch::nn::Sequential(torch::nn::Linear(33, 33), torch::nn::ReLU(),
                                                      torch::nn::Linear(33, 33), torch::nn::ReLU(),
                                                      torch::nn::Linear(33, 33)));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(33, 7));
  at::Tensor forward(const at::Tensor& x) { return last(middle->forward(at::relu(first(x)))); }
  at::Tensor loss(uint64_t seed) {
    return torch::nn::functional::cross_entropy(forward(normal({16, 20}, seed)),
                                                tokens(7, {16}, seed));
  }
};

/// Convolutions and batch normalization.
struct SmallCnn : torch::nn::Module {
  torch::nn::Conv2d conv1 = register_module(
      "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1).bias(false)));
  torch::nn::BatchNorm2d norm1 = register_module("norm1", torch::nn::BatchNorm2d(16));
  torch::nn::Conv2d conv2 = register_module(
      "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2).bias(false)));
  torch::nn::BatchNorm2d norm2 = register_module("norm2", torch::nn::BatchNorm2d(32));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 10));
  at::Tensor forward(const at::Tensor& x) {
    auto y = at::relu(norm1(conv1(x)));
    return head(at::relu(norm2(conv2(y))).mean({2, 3}));
  }
  at::Tensor loss(uint64_t seed) {
    return torch::nn::functional::cross_entropy(forward(normal({8, 3, 12, 12}, seed)),
                                                tokens(10, {8}, seed));
  }
};

/// A block of a transformer.
struct SmallBlockImpl : torch::nn::Module {
  explicit SmallBlockImpl(int64_t width)
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  at::Tensor forward(at::Tensor x) {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2);
    const auto heads = qkv(norm1(x)).view({batch, time, 3, 4, width / 4}).permute({2, 0, 3, 1, 4});
    const auto mixed =
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, true);
    x = x + out(mixed.transpose(1, 2).reshape({batch, time, width}));
    return x + down(at::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(SmallBlock);

/// A GPT whose head is its embedding, where that is asked for.
struct SmallGpt : torch::nn::Module {
  explicit SmallGpt(bool ties = true, int64_t blocks = 3, int64_t width = 32, int64_t words = 97)
      : tied(ties),
        vocabulary(words),
        embedding(register_module("embedding", torch::nn::Embedding(words, width))),
        position(register_module("position", torch::nn::Embedding(16, width))),
        blocks_(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))) {
    for (int64_t i = 0; i < blocks; ++i) blocks_->push_back(SmallBlock(width));
    if (!tied)
      head = register_module("head",
                             torch::nn::Linear(torch::nn::LinearOptions(width, words).bias(false)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = embedding(ids) + position(at::arange(ids.size(1)));
    for (const auto& block : *blocks_) x = block->as<SmallBlock>()->forward(x);
    return torch::nn::functional::linear(norm(x), tied ? embedding->weight : head->weight);
  }
  at::Tensor loss(uint64_t seed) {
    const auto ids = tokens(vocabulary, {2, 17}, seed);
    return torch::nn::functional::cross_entropy(
        forward(ids.narrow(1, 0, 16)).reshape({-1, vocabulary}),
        ids.narrow(1, 1, 16).reshape({-1}));
  }
  bool tied;
  int64_t vocabulary;
  torch::nn::Embedding embedding, position;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head{nullptr};
};

/// Recurrent layers, whose weights go to an operation as a list.
struct SmallRnn : torch::nn::Module {
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(30, 16));
  torch::nn::LSTM lstm = register_module(
      "lstm",
      torch::nn::LSTM(
          torch::nn::LSTMOptions(16, 24).num_layers(2).bidirectional(true).batch_first(true)));
  torch::nn::GRU gru =
      register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(48, 20).batch_first(true)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(20, 30));
  at::Tensor forward(const at::Tensor& ids) {
    const auto hidden = std::get<0>(lstm(embedding(ids)));
    return head(std::get<0>(gru(hidden)));
  }
  at::Tensor loss(uint64_t seed) {
    const auto ids = tokens(30, {4, 9}, seed);
    return torch::nn::functional::cross_entropy(forward(ids).reshape({-1, 30}), ids.reshape({-1}));
  }
};

/// A parameter that is used three times, one that some steps leave out, one that is frozen, an empty
/// one, and an embedding with sparse gradients.
struct OddModel : torch::nn::Module {
  torch::nn::Embedding rows{nullptr};
  torch::nn::Linear shared = register_module("shared", torch::nn::Linear(12, 12));
  torch::nn::Linear sometimes = register_module("sometimes", torch::nn::Linear(12, 12));
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(12, 12));
  at::Tensor nothing = register_parameter("nothing", torch::zeros({0, 3}));
  at::Tensor scalar = register_parameter("scalar", torch::ones({}));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(12, 3));
  explicit OddModel(bool sparse) {
    rows = register_module(
        "rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 12).sparse(sparse)));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor loss(uint64_t seed) {
    auto x = at::tanh(shared(rows(tokens(50, {8}, seed))));
    x = at::tanh(shared(x)) * scalar;
    if (seed % 3 != 1) x = at::tanh(sometimes(x));
    x = at::tanh(shared(frozen(x))) + shared->weight.sum() * 0.01 + nothing.sum();
    return torch::nn::functional::cross_entropy(head(x), tokens(3, {8}, seed));
  }
};

}  // namespace accel::test
