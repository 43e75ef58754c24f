// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The same loop in three precisions. One type changes; the loop does not.
//   bf16  computes matrix products in 16 bits, parameters stay fp32
//   fp16  the same with a loss scaler: a step whose gradients overflowed is skipped, and the scale
//         goes down
//
// Expected output:
//     fp32: loss 0.14, 0 skipped, first layer computes in Float, parameters are Float
//     bf16: loss 0.14, 0 skipped, first layer computes in BFloat16, parameters are Float
//     fp16: loss 0.16, 5 skipped, first layer computes in Half, parameters are Float
#include <accel/accel.hpp>

namespace F = torch::nn::functional;

template <class Precision>
void train() {
  using Accelerator =
      accel::Accelerator<accel::single, Precision, accel::accumulate<1>, accel::on<accel::cpu>>;
  Accelerator accelerator;

  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  const auto x = torch::randn({256, 8});
  const auto y = x.pow(2).sum(1, /*keepdim=*/true);
  int skipped = 0;
  at::Tensor loss;
  for (int step = 0; step < 200; ++step) {
    loss = F::mse_loss(model(x), y);  // the model's output is fp32 again
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 10.0);  // on unscaled gradients, whatever the precision
    optimizer.step();
    optimizer.zero_grad();
    skipped += optimizer.step_was_skipped();
  }
  accelerator.print("{}: loss {:.2f}, {} skipped, first layer computes in {}, parameters are {}",
                    Precision::name, loss.item<float>(), skipped, c10::toString([&] {
                      const auto scope = accelerator.autocast();
                      return at::linear(x, net->parameters()[0]).scalar_type();
                    }()),
                    c10::toString(net->parameters()[0].scalar_type()));
}

int main() {
  train<accel::fp32>();
  train<accel::bf16>();
  train<accel::fp16>();
}
