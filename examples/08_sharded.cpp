// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One training loop, two strategies: with ddp each rank holds the whole model, with sharded<zero3> a
// part of it, and gets the rest a block at a time while it computes. The type of the accelerator is
// all that differs; the losses are the same. What zero3 saved, ddp goes on with.
//
//     build/default/bin/accel-launch --num_processes 2 build/default/bin/08_sharded
//
// Expected output on 2 processes:
//     ddp
//       step  20: loss 3.0507
//       step  40: loss 3.0935
//     sharded<zero3>
//       5 units of 817920 parameters; this rank holds 1.56 MiB of them, and whole units of 0.76 MiB at most
//       step  20: loss 3.0507
//       step  40: loss 3.0935
//     from the state of sharded<zero3> on with ddp
//       step  60: loss 2.8937
#include <accel/accel.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace F = torch::nn::functional;

constexpr int64_t characters = 128, length = 64, width = 128, heads = 4, layers = 4;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1 =
      register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  torch::nn::LayerNorm norm2 =
      register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(width, width));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(width, 4 * width));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * width, width));

  at::Tensor forward(const at::Tensor& x) {
    const auto batch = x.size(0);
    const auto parts = qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).unbind(2);
    const auto attended = at::scaled_dot_product_attention(
        parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2), {}, 0.0,
        /*is_causal=*/true);
    const auto y = x + out(attended.transpose(1, 2).reshape({batch, length, width}));
    return y + down(torch::gelu(up(norm2(y))));
  }
};
TORCH_MODULE(Block);

/// A plain module: it does not know how it is trained.
struct GptImpl : torch::nn::Module {
  torch::nn::Embedding tokens = register_module("tokens", torch::nn::Embedding(characters, width));
  torch::nn::Embedding places = register_module("places", torch::nn::Embedding(length, width));
  torch::nn::Sequential blocks = register_module("blocks", torch::nn::Sequential());
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));

  GptImpl() {
    for (int i = 0; i < layers; ++i) blocks->push_back(Block());
    torch::NoGradGuard no_grad;
    for (auto& weight : {tokens->weight, places->weight}) weight.mul_(0.02);
  }
  at::Tensor forward(const at::Tensor& ids) {
    const auto x = tokens(ids) + places(torch::arange(length));
    return F::linear(norm(blocks->forward(x)), tokens->weight);
  }
};
TORCH_MODULE(Gpt);

/// A text in windows: each character is to foretell the next one.
std::vector<torch::data::Example<>> windows_of(const std::string& file) {
  std::ifstream text(file);
  std::vector<int64_t> ids;
  for (std::istreambuf_iterator<char> c(text), end; c != end; ++c)
    ids.push_back(static_cast<unsigned char>(*c) % characters);
  const auto all = torch::tensor(ids);
  std::vector<torch::data::Example<>> windows;
  for (int64_t begin = 0; begin + length < all.size(0); begin += length)
    windows.emplace_back(all.slice(0, begin, begin + length),
                         all.slice(0, begin + 1, begin + length + 1));
  return windows;
}

/// The loop. A state to begin with and one to end with, if they are named.
template <class Accelerator>
void train(int steps, const std::string& load = {}, const std::string& save = {}) {
  Accelerator accelerator;
  torch::manual_seed(0);
  Gpt gpt;
  torch::optim::AdamW adamw(gpt->parameters(), torch::optim::AdamWOptions(1e-3));
  auto [model, optimizer, loader] =
      accelerator.prepare(gpt, adamw,
                          accel::data_loader(windows_of("/usr/share/common-licenses/GPL-3"),
                                             {.batch_size = 4, .shuffle = true, .data_seed = 1}));
  if constexpr (requires { accelerator.sharding_report(model); }) {
    const auto report = accelerator.sharding_report(model);
    int64_t parameters = 0;
    for (const auto& parameter : gpt->parameters()) parameters += parameter.numel();
    accelerator.print("  {} units of {} parameters; this rank holds {:.2f} MiB of them, and whole "
                      "units of {:.2f} MiB at most",
                      report.units, parameters, double(report.parameters) / (1 << 20),
                      double(report.largest_unit) / (1 << 20));
  }
  int step = load.empty() ? 0 : 40;
  if (!load.empty()) accelerator.load_state(load);

  while (step < steps)
    for (auto& batch : loader) {
      accelerator.accumulate(model, [&] {
        const auto loss = F::cross_entropy(model(batch.data).flatten(0, 1), batch.target.flatten());
        accelerator.backward(loss);
        accelerator.clip_grad_norm_(model, 1.0);
        optimizer.step();
        optimizer.zero_grad();
        if (++step % 20 == 0)
          accelerator.print(
              "  step {:3}: loss {:.4f}", step,
              accelerator.reduce(loss.detach(), accel::Reduction::mean).template item<double>());
      });
      if (step == steps) break;
    }
  if (!save.empty()) accelerator.save_state(save);
}

template <class Backend>
using AcceleratorOf =
    accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;

int main() {
  const accel::PartialState processes;
  const auto state = std::filesystem::temp_directory_path() / "08_sharded";

  processes.print("ddp");
  train<AcceleratorOf<accel::ddp>>(40);
  processes.print("sharded<zero3>");
  train<AcceleratorOf<accel::sharded<accel::zero3>>>(40, {}, state);
  processes.print("from the state of sharded<zero3> on with ddp");
  train<AcceleratorOf<accel::ddp>>(60, state);

  processes.wait_for_everyone();
  if (processes.is_main_process()) std::filesystem::remove_all(state);
}
