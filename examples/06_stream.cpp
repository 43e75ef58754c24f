// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Training on a stream that only one process can read, such as a socket or a simulation:
//
//     build/default/bin/accel-launch --num_processes 2 build/default/bin/06_stream
//
// Rank 0 reads and deals out the batches; a loop is a loop. Nobody knows how long the stream is: one
// batch is read ahead, so that the last one closes the accumulation window, and metrics count each
// sample once.
//
// Expected output on 2 processes:
//     epoch 0: 203 measurements in 7 rounds, mean of their targets 0.50
//     epoch 1: 203 measurements in 7 rounds, mean of their targets 0.50
//     4 steps an epoch, loss 0.00, slope 2.00
//     rank 0 has read 406 measurements in 2 epochs, rank 1 has read 0
#include <accel/accel.hpp>

namespace F = torch::nn::functional;

/// 203 measurements of y = 2 x - 0.5. It cannot be copied, and starts again when it is told to.
class Instrument {
 public:
  explicit Instrument(int64_t& reads) : reads_(&reads) {}
  Instrument(const Instrument&) = delete;

  void reset() { place_ = 0; }
  std::optional<torch::data::Example<>> next() {
    if (place_ == 203) return std::nullopt;
    ++*reads_;
    const auto x = torch::full({1}, double(place_++) / 202);
    return torch::data::Example<>(x, 2 * x - 0.5);
  }

 private:
  int64_t* reads_;
  int place_ = 0;
};

int main() {
  accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<2>, accel::on<accel::cpu>>
      accelerator;

  torch::manual_seed(0);
  torch::nn::Linear net(1, 1);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0));
  int64_t reads = 0;
  auto [model, optimizer, loader] = accelerator.prepare(
      net, adamw,
      accel::data_loader(std::make_shared<Instrument>(reads),
                         {.batch_size = 16, .num_workers = 1, .dispatch_batches = true}));

  int64_t steps = 0;
  at::Tensor loss;
  const auto epochs = 200;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    int64_t rounds = 0, count = 0;
    double sum = 0;
    for (auto& batch : loader) {
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        loss = F::mse_loss(model(batch.data), batch.target);
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
      });
      steps += accelerator.sync_gradients();
      const auto targets = accelerator.gather_for_metrics(batch.target);
      sum += targets.sum().item<double>();
      count += targets.size(0);
      ++rounds;
    }
    if (epoch < 2)
      accelerator.print("epoch {}: {} measurements in {} rounds, mean of their targets {:.2f}",
                        epoch, count, rounds, sum / double(count));
  }
  accelerator.print("{} steps an epoch, loss {:.2f}, slope {:.2f}", steps / epochs,
                    loss.item<double>(), net->weight.item<double>());
  const auto of_ranks = accelerator.gather(torch::tensor({reads / (epochs / 2)}));
  accelerator.print("rank 0 has read {} measurements in 2 epochs, rank 1 has read {}",
                    of_ranks[0].item<int64_t>(), of_ranks[1].item<int64_t>());
}
