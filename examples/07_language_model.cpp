// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A small GPT on plain text, with a loss over tokens. Paragraphs have different lengths, so batches
// are padded; the loss is the mean over the tokens that are none of the padding, of all ranks and
// micro-batches together: `backward(sum, count)`. A mean of the batches' means would weigh a token of
// a short paragraph more.
//
//     build/default/bin/accel-launch --num_processes 2 build/default/bin/07_language_model [text files ...]
//
// The text is /usr/share/common-licenses/GPL-3 of Debian's package base-files if none is named.
//
// Expected output on 2 processes:
//     122 paragraphs, 10270 characters, 81408 parameters
//     step  50: loss 3.5770 a character
//     step 100: loss 2.6321 a character
//     step 150: loss 2.2667 a character
//     step 200: loss 2.0999 a character
//     validation: loss 2.5522 over 896 characters
#include <accel/accel.hpp>

#include <fstream>
#include <sstream>

namespace F = torch::nn::functional;

constexpr int64_t characters = 128, longest = 96, width = 64, heads = 4, layers = 2;
constexpr int64_t ignored = -100;  // the target of padding

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1 =
      register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  torch::nn::LayerNorm norm2 =
      register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(width, width));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(width, 2 * width));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(2 * width, width));

  at::Tensor forward(const at::Tensor& x) {
    const auto batch = x.size(0), length = x.size(1);
    const auto parts = qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).unbind(2);
    const auto attended = at::scaled_dot_product_attention(
        parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2), {}, 0.0,
        /*is_causal=*/true);
    const auto y = x + out(attended.transpose(1, 2).reshape({batch, length, width}));
    return y + down(torch::gelu(up(norm2(y))));
  }
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  torch::nn::Embedding tokens = register_module("tokens", torch::nn::Embedding(characters, width));
  torch::nn::Embedding places = register_module("places", torch::nn::Embedding(longest, width));
  torch::nn::Sequential blocks = register_module("blocks", torch::nn::Sequential());
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));

  GptImpl() {
    for (int i = 0; i < layers; ++i) blocks->push_back(Block());
    torch::NoGradGuard no_grad;
    for (auto& weight : {tokens->weight, places->weight}) weight.mul_(0.02);
  }
  /// Logits for the character after each one; the embedding is also the head.
  at::Tensor forward(const at::Tensor& ids) {
    const auto x = tokens(ids) + places(torch::arange(ids.size(1), ids.device()));
    return F::linear(norm(blocks->forward(x)), tokens->weight);
  }
};
TORCH_MODULE(Gpt);

/// Inputs and targets of a paragraph: each character is to foretell the next one.
using Sample = torch::data::Example<>;

std::vector<Sample> paragraphs_of(const std::vector<std::string>& files, size_t& length) {
  std::vector<Sample> samples;
  for (const auto& name : files) {
    std::ifstream file(name);
    if (!file) throw std::runtime_error("cannot read " + name);
    std::ostringstream text;
    text << file.rdbuf();
    const auto all = text.str();
    for (size_t begin = 0, end = 0; begin < all.size(); begin = end + 2) {
      end = std::min(all.find("\n\n", begin), all.size());
      const auto paragraph = all.substr(begin, std::min<size_t>(end - begin, longest + 1));
      if (paragraph.size() < 8) continue;
      std::vector<int64_t> ids;
      for (const char c : paragraph) ids.push_back(static_cast<unsigned char>(c) % characters);
      const auto tensor = torch::tensor(ids);
      samples.push_back({tensor.slice(0, 0, -1), tensor.slice(0, 1)});
      length += paragraph.size() - 1;
    }
  }
  return samples;
}

/// Paragraphs of different lengths as one batch, padded to the longest.
struct Pad {
  Sample operator()(std::vector<Sample> samples) const {
    std::vector<at::Tensor> inputs, targets;
    for (const auto& sample : samples) {
      inputs.push_back(sample.data);
      targets.push_back(sample.target);
    }
    return {torch::nn::utils::rnn::pad_sequence(inputs, /*batch_first=*/true, 0),
            torch::nn::utils::rnn::pad_sequence(targets, /*batch_first=*/true, double(ignored))};
  }
};

/// The sum of the losses, and over how many characters.
template <class Model>
std::pair<at::Tensor, at::Tensor> loss_of(const Model& model, const Sample& batch) {
  const auto logits = model(batch.data);
  const auto sum =
      F::cross_entropy(logits.flatten(0, 1), batch.target.flatten(),
                       F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(ignored));
  return {sum, (batch.target != ignored).sum()};
}

int main(int argc, char** argv) {
  accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<2>, accel::on<accel::cpu>>
      accelerator;
  accel::set_seed(0);
  std::vector<std::string> files(argv + 1, argv + argc);
  if (files.empty()) files.emplace_back("/usr/share/common-licenses/GPL-3");
  size_t length = 0;
  auto train = paragraphs_of(files, length);
  std::vector<Sample> held_out;
  for (size_t i = 0; i * 10 < train.size(); ++i) {
    held_out.push_back(train[i * 9]);
    train.erase(train.begin() + static_cast<std::ptrdiff_t>(i * 9));
  }

  Gpt gpt;
  torch::optim::AdamW adamw(gpt->parameters(), torch::optim::AdamWOptions(3e-3));
  auto [model, optimizer, schedule, loader, validation] =
      accelerator.prepare(gpt, adamw, accel::cosine_schedule(adamw, 200, 20),
                          accel::data_loader(train, {.batch_size = 8, .shuffle = true}, Pad()),
                          accel::data_loader(held_out, {.batch_size = 8}, Pad()));
  int64_t parameters = 0;
  for (const auto& parameter : gpt->parameters()) parameters += parameter.numel();
  accelerator.print("{} paragraphs, {} characters, {} parameters", train.size() + held_out.size(),
                    length, parameters);

  auto window = torch::zeros({2}, torch::kDouble);  // loss and characters since the last line
  int step = 0;
  while (step < 200)
    for (auto& batch : loader) {
      accelerator.accumulate(model, [&] {
        const auto [sum, count] = loss_of(model, batch);
        accelerator.backward(sum, count);
        accelerator.clip_grad_norm_(model, 1.0);
        optimizer.step();
        schedule.step();
        optimizer.zero_grad();
        window += torch::stack({sum.detach().to(torch::kDouble), count.to(torch::kDouble)});
      });
      if (!accelerator.sync_gradients()) continue;
      if (++step % 50 == 0) {
        const auto total = accelerator.reduce(window);
        window.zero_();
        accelerator.print("step {:3}: loss {:.4f} a character", step,
                          (total[0] / total[1]).template item<double>());
      }
      if (step == 200) break;
    }

  model->eval();
  const torch::NoGradGuard no_grad;
  auto sums = torch::zeros({2}, torch::kDouble);
  for (auto& batch : validation) {
    // A row a paragraph, so that those that are repeated in the last round are left out.
    const auto logits = model(batch.data);
    const auto losses = F::cross_entropy(
        logits.flatten(0, 1), batch.target.flatten(),
        F::CrossEntropyFuncOptions().reduction(torch::kNone).ignore_index(ignored));
    const auto all = accelerator.gather_for_metrics(torch::stack(
        {losses.view_as(batch.target).sum(1), (batch.target != ignored).sum(1).to(torch::kFloat)},
        1));
    sums += all.to(torch::kDouble).sum(0);
  }
  accelerator.print("validation: loss {:.4f} over {} characters",
                    (sums[0] / sums[1]).item<double>(), sums[1].item<int64_t>());
}
