// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The smallest training program: one step of one linear layer, from an installed accel.
#include <accel/accel.hpp>

#include <iostream>

int main() {
  torch::manual_seed(0);
  accel::Accelerator<accel::single, accel::fp32> accelerator;
  torch::nn::Linear net(4, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  const auto data = torch::ones({8, 4});
  const auto loss_of = [&] { return model(data).pow(2).mean(); };
  const auto before = loss_of();
  accelerator.backward(before);
  optimizer.step();
  optimizer.zero_grad();
  const auto after = loss_of();
  std::cout << "loss " << before.item<float>() << " -> " << after.item<float>() << '\n';
  return after.item<float>() < before.item<float>() ? 0 : 1;
}
