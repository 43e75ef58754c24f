// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/random_state.hpp>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <algorithm>
#include <mutex>

namespace accel::detail {

RandomState::RandomState(const std::vector<c10::Device>& devices) {
  remember(c10::Device(at::kCPU));
  for (const auto& device : devices)
    if (!device.is_cpu()) remember(device);
}

void RandomState::restore() const {
  for (const auto& [device, state] : states_) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(state);
  }
}

RandomState RandomState::now() const {
  RandomState other;
  for (const auto& known : states_) other.remember(known.first);
  return other;
}

void RandomState::remember(c10::Device device) {
  if (std::ranges::any_of(states_, [&](const auto& known) { return known.first == device; }))
    return;
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  states_.emplace_back(device, generator.get_state());
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const auto& tensor : tensors)
    if (tensor.defined()) devices.push_back(tensor.device());
  return devices;
}

}  // namespace accel::detail
