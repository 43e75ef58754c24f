// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Gradient accumulation: four micro-batches an optimizer step. Inside `accumulate`, step and
// zero_grad act only where the window closes, so that the loop reads as without it. The last window
// of an epoch is short; its gradient is the mean over what it saw.
//
// Expected output:
//     x 0.1: accumulate
//     x 0.2: accumulate
//     x 0.3: accumulate
//     x 0.4: step, slope 0.0450
//     x 0.5: accumulate
//     x 0.6: accumulate
//     x 0.7: accumulate
//     x 0.8: step, slope 0.3021
//     x 0.9: accumulate
//     x 1.0: step, slope 0.7904
#include <accel/accel.hpp>

struct Line : torch::nn::Module {
  at::Tensor slope = register_parameter("slope", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x) { return slope * x; }
};

int main() {
  accel::Accelerator<accel::single, accel::fp32, accel::accumulate<4>> accelerator;

  auto net = std::make_shared<Line>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  // Ten samples of y = 3x: windows of 4, 4 and 2 micro-batches.
  std::vector<torch::data::Example<>> samples;
  for (int i = 1; i <= 10; ++i)
    samples.push_back({torch::tensor(0.1F * float(i)), torch::tensor(0.3F * float(i))});
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, accel::data_loader(samples, {.batch_size = 1}));

  for (auto& batch : loader)
    accelerator.accumulate(model, [&] {
      auto loss = torch::mse_loss(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      accelerator.print("x {:.1f}: {}", batch.data.template item<float>(),
                        accelerator.sync_gradients()
                            ? fmt::format("step, slope {:.4f}", net->slope.item<float>())
                            : std::string("accumulate"));
    });
}
