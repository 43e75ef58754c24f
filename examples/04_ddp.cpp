// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training, on as many processes as the launcher starts:
//
//     build/default/bin/accel-launch --num_processes 2 build/default/bin/04_ddp
//
// What makes it data-parallel is one word, the backend. Each rank gets its share of every round of batches,
// gradients are the mean over ranks, and metrics are gathered without the samples that were
// repeated to make the last round even.
//
// Expected output on 2 processes:
//     2 processes, 11 batches each, of 50 samples together
//     epoch 0: 421 of 501 right
//     epoch 1: 459 of 501 right
//     epoch 2: 487 of 501 right
#include <accel/accel.hpp>

namespace F = torch::nn::functional;

int main() {
  accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
      accelerator;

  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<torch::data::Example<>> samples;
  for (int i = 0; i < 501; ++i) {
    const auto x = torch::randn({4});
    samples.push_back({x, (x.sum() > 0).to(torch::kLong)});
  }
  auto [model, optimizer, loader, test] = accelerator.prepare(
      net, adamw, accel::data_loader(samples, {.batch_size = 25, .shuffle = true}),
      accel::data_loader(samples, {.batch_size = 50}));
  accelerator.print("{} processes, {} batches each, of {} samples together",
                    accelerator.num_processes(), loader.size(), loader.total_batch_size());

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : loader) {
      auto loss = F::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);  // reduced over the ranks while it runs
      optimizer.step();
      optimizer.zero_grad();
    }
    const torch::NoGradGuard no_grad;
    int64_t correct = 0, count = 0;
    for (auto& batch : test) {
      auto hits = accelerator.gather_for_metrics(model(batch.data).argmax(1) == batch.target);
      correct += hits.sum().item<int64_t>();
      count += hits.size(0);
    }
    accelerator.print("epoch {}: {} of {} right", epoch, correct, count);
  }
}
