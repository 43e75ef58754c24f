// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The GPT-like model of the strategy benchmarks: 6 blocks of width 512, 8,000 words, 27.1 M parameters.
// bench/peers/torch_gpt.py has the same one, constructed in the same order, so that one seed gives
// both the same weights.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace bench {

struct GptSize {
  int64_t blocks = 6, width = 512, heads = 8, words = 8000, time = 64, batch = 4;
};

struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptSize& size)
      : heads_(size.heads),
        norm1(register_module("norm1", norm(size))),
        qkv(register_module("qkv", torch::nn::Linear(size.width, 3 * size.width))),
        out(register_module("out", torch::nn::Linear(size.width, size.width))),
        norm2(register_module("norm2", norm(size))),
        up(register_module("up", torch::nn::Linear(size.width, 4 * size.width))),
        down(register_module("down", torch::nn::Linear(4 * size.width, size.width))) {}

  at::Tensor forward(at::Tensor x) {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2);
    const auto parts =
        qkv(norm1(x)).view({batch, time, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                        /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).reshape({batch, time, width}));
    return x + down(at::gelu(up(norm2(x))));
  }

 private:
  static torch::nn::LayerNorm norm(const GptSize& size) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width}));
  }
  int64_t heads_;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, out;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(GptBlock);

struct Gpt : torch::nn::Module {
  explicit Gpt(const GptSize& size = {})
      : words(register_module("words", torch::nn::Embedding(size.words, size.width))),
        places(register_module("places", torch::nn::Embedding(size.time, size.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < size.blocks; ++i) blocks->push_back(GptBlock(size));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(size.width, size.words).bias(false)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = words(ids) + places(at::arange(ids.size(1)));
    for (const auto& block : *blocks) x = block->as<GptBlock>()->forward(x);
    return head(norm(x));
  }

  torch::nn::Embedding words, places;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};

/// The batch of a rank in a step: tokens, the next of each is its target.
inline at::Tensor tokens_of(const GptSize& size, int64_t step, int rank) {
  auto numbers =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 * step + rank));
  return at::randint(0, size.words, {size.batch, size.time + 1}, numbers,
                     at::TensorOptions().dtype(at::kLong));
}

}  // namespace bench
