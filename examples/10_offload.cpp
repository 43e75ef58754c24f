// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A model whose parameters and optimizer state wait in files on a disk, and whose activations are
// computed again in backward: one type changes. The losses are the same; what stays in memory is not.
// One process; with accel-launch each of several would hold its part only.
//
//     build/default/bin/10_offload [FOLDER ON A DISK]
//
// Expected output on 1 process:
//     in memory: 48.3 MiB at rest, 0.0 MiB on disk
//       step 10: loss 0.3644
//       step 20: loss 0.1234
//       step 30: loss 0.0762
//     on disk: 12.1 MiB at rest, 36.2 MiB on disk
//       step 10: loss 0.3644
//       step 20: loss 0.1234
//       step 30: loss 0.0762
//       360 layers ran again in backward
#include <accel/accel.hpp>
#include <accel/policy/memory.hpp>

#include <filesystem>
#include <string>

namespace {

/// A residual layer.
struct LayerImpl : torch::nn::Module {
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({512})));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(512, 512));
  at::Tensor forward(const at::Tensor& x) { return x + torch::gelu(linear(norm(x))); }
};
TORCH_MODULE(Layer);

template <class Placement>
using On = accel::Accelerator<accel::sharded<accel::zero3, accel::wrap<LayerImpl>>, accel::fp32,
                              accel::accumulate<1>, Placement>;
using InMemory = On<accel::on<accel::cpu>>;
using OnDisk = On<accel::on<accel::cpu, accel::offload<accel::optimizer_state, accel::parameters>,
                            accel::recomputed<accel::wrap<LayerImpl>>>>;

template <class Accelerator>
void train(const std::string& folder) {
  accel::AcceleratorOptions options;
  options.offload.folder = folder;
  Accelerator accelerator(options);
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int i = 0; i < 12; ++i) net->push_back(Layer());
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  const auto x = torch::randn({64, 512}), y = x.roll(1, /*dims=*/1);
  for (int step = 1; step <= 30; ++step) {
    const auto loss = torch::mse_loss(model(x), y);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (step % 10 == 0)
      accelerator.print("  step {}: loss {:.4f}", step, loss.template item<double>());
  }
  if constexpr (requires { accelerator.recompute_report(model); })
    accelerator.print("  {} layers ran again in backward",
                      accelerator.recompute_report(model).recomputed);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/var/tmp";
  constexpr accel::ModelSize size{.parameters = 12 * (512 * 513 + 2 * 512),
                                  .largest_unit = 512 * 513 + 2 * 512};
  const auto print = [](const char* name, const accel::RankMemory& bytes) {
    accel::PartialState().print("{}: {:.1f} MiB at rest, {:.1f} MiB on disk", name,
                                bytes.at_rest() / (1 << 20), bytes.offloaded / (1 << 20));
  };
  using Backend = accel::sharded<accel::zero3>;
  print("in memory", accel::rank_memory<Backend, accel::fp32>(size, {}));
  train<InMemory>(folder);
  print("on disk",
        accel::rank_memory<
            Backend, accel::fp32,
            accel::on<accel::cpu, accel::offload<accel::optimizer_state, accel::parameters>>>(size,
                                                                                              {}));
  train<OnDisk>(folder);
}
