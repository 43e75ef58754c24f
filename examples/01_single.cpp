// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A training loop on one process. What differs from the loop that you have: `prepare`, and
// `accelerator.backward(loss)`.
//
// Expected output:
//     step   0: loss 1.1172
//     step  50: loss 0.1895
//     step 100: loss 0.0042
//     trained on 1 process
#include <accel/accel.hpp>

namespace F = torch::nn::functional;

// Any module will do: no base class, no macro, no wrapped layer.
struct Classifier : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(2, 32));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(32, 3));
  at::Tensor forward(const at::Tensor& x) { return output(torch::tanh(hidden(x))); }
};

// Three clouds of points in the plane.
std::vector<torch::data::Example<>> clouds() {
  std::vector<torch::data::Example<>> samples;
  for (int64_t i = 0; i < 600; ++i) {
    const auto centre = torch::tensor(
        {std::cos(2.1 * double(i % 3)), std::sin(2.1 * double(i % 3))}, torch::kFloat);
    samples.push_back({centre + 0.4 * torch::randn({2}), torch::tensor(i % 3)});
  }
  return samples;
}

int main() {
  accel::Accelerator<accel::single, accel::fp32> accelerator;

  torch::manual_seed(0);
  auto net = std::make_shared<Classifier>();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto data = accel::data_loader(clouds(), {.batch_size = 20, .shuffle = true});

  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, data);

  int step = 0;
  for (int epoch = 0; epoch < 4; ++epoch)
    for (auto& batch : loader) {
      auto loss = F::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      if (step % 50 == 0) accelerator.print("step {:3}: loss {:.4f}", step, loss.item<float>());
      ++step;
    }
  accelerator.print("trained on {} process", accelerator.num_processes());
}
