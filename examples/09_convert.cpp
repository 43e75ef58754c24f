// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A training that changes its strategy on the way, in memory: the first epoch with ddp, the second
// with sharded<zero3>, the third with ddp again. Optimizer, schedule and the order of the data go on;
// the losses are those of a training that stays with ddp.
//
//     build/default/bin/accel-launch --num_processes 2 build/default/bin/09_convert
//
// Expected output on 2 processes:
//     ddp all the way
//       epoch 1: loss 1.2888
//       epoch 2: loss 1.1252
//       epoch 3: loss 1.0122
//     changing
//       epoch 1: loss 1.2888
//       sharded: this rank holds 9280 bytes of the parameters
//       epoch 2: loss 1.1252
//       epoch 3: loss 1.0122
#include <accel/accel.hpp>

#include <cstdint>
#include <vector>

namespace {

template <class Backend>
using On = accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;
using Ddp = On<accel::ddp>;
using Sharded = On<accel::sharded<accel::zero3>>;

/// Points of a plane; the class is the number of the ring that a point lies in.
std::vector<torch::data::Example<>> rings(int64_t count) {
  const auto points = torch::randn({count, 2});
  const auto ring = points.norm(2, 1).mul(1.6).to(torch::kLong).clamp_max(3);
  std::vector<torch::data::Example<>> samples;
  for (int64_t i = 0; i < count; ++i) samples.emplace_back(points[i], ring[i]);
  return samples;
}

/// One epoch, whatever the accelerator: prints the mean loss.
template <class Accelerator, class Model, class Optimizer, class Loader, class Schedule>
void train(Accelerator& accelerator, Model& model, Optimizer& optimizer, Loader& loader,
           Schedule& schedule) {
  auto sum = torch::zeros({});
  const auto epoch = loader.epoch() + 1;
  for (auto& batch : loader)
    accelerator.accumulate(model, [&] {
      const auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
      sum += loss.detach();
    });
  accelerator.print("  epoch {}: loss {:.4f}", epoch,
                    accelerator.reduce(sum / double(loader.size()), accel::Reduction::mean)
                        .template item<double>());
}

void run(bool changes) {
  Ddp ddp;
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                            torch::nn::Tanh(), torch::nn::Linear(64, 4));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-3));
  auto [model, optimizer, loader, schedule] =
      ddp.prepare(net, adamw, accel::data_loader(rings(2000), {.batch_size = 20, .shuffle = true}),
                  accel::cosine_schedule(adamw, 150));

  train(ddp, model, optimizer, loader, schedule);
  if (!changes) {
    train(ddp, model, optimizer, loader, schedule);
    train(ddp, model, optimizer, loader, schedule);
    return;
  }
  // The objects stay what they are; each has a new handle.
  auto [sharded, handles] = ddp.convert<Sharded>(model, optimizer, loader, schedule);
  {
    auto& [model2, optimizer2, loader2, schedule2] = handles;
    const auto report = sharded.sharding_report(model2);
    sharded.print("  sharded: this rank holds {} bytes of the parameters", report.parameters);
    train(sharded, model2, optimizer2, loader2, schedule2);
    auto [last, again] = sharded.convert<Ddp>(model2, optimizer2, loader2, schedule2);
    auto& [model3, optimizer3, loader3, schedule3] = again;
    train(last, model3, optimizer3, loader3, schedule3);
  }
}

}  // namespace

int main() {
  const accel::PartialState processes;
  processes.print("ddp all the way");
  run(false);
  processes.print("changing");
  run(true);
}
