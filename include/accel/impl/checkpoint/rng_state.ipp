// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/rng_state.hpp.
#include <accel/checkpoint/rng_state.hpp>

#include <accel/detail/error.hpp>

#include <ATen/Context.h>

#include <mutex>
#include <utility>

namespace accel {
namespace detail {
namespace {

constexpr const char* cpu_name = "torch_manual_seed";

// The default generators of the devices that are here.
std::vector<std::pair<std::string, at::Generator>> default_generators() {
  auto& context = at::globalContext();
  std::vector<std::pair<std::string, at::Generator>> generators{
      {cpu_name, context.defaultGenerator(at::kCPU)}};
  const auto devices = at::Context::hasCUDA() ? at::getNumGPUs() : 0;
  for (std::size_t index = 0; index < devices; ++index) {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
    generators.emplace_back(fmt::format("torch_cuda_manual_seed.{}", index),
                            context.defaultGenerator(device));
  }
  return generators;
}

at::Tensor state_of(at::Generator& generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

}  // namespace
}  // namespace detail

NamedTensors rng_state() {
  NamedTensors states;
  for (auto& [name, generator] : detail::default_generators()) {
    states.emplace_back(name, detail::state_of(generator));
  }
  return states;
}

std::vector<std::string> load_rng_state(const Safetensors& file) {
  auto generators = detail::default_generators();
  // A clone takes the state first: LibTorch checks it only while setting it, and one bad state must
  // not leave the other generators half restored.
  std::vector<std::pair<at::Generator*, at::Tensor>> accepted;
  std::vector<std::string> absent;
  for (const auto& [name, state] : file.tensors) {
    bool here = false;
    for (auto& [generator_name, generator] : generators) {
      if (generator_name != name) {
        continue;
      }
      here = true;
      try {
        auto trial = [&] {
          const std::scoped_lock lock(generator.mutex());
          return generator.clone();
        }();
        trial.set_state(state);
      } catch (const c10::Error& problem) {
        detail::fail(ErrorCategory::checkpoint, "{}: {} is not a generator's state: {}",
                     file.source, name, problem.what_without_backtrace());
      }
      accepted.emplace_back(&generator, state);
    }
    if (!here) {
      absent.push_back(name);
    }
  }
  if (!file.tensors.contains(detail::cpu_name)) {
    detail::fail(ErrorCategory::checkpoint, "{} has no {}, the state of the CPU's generator",
                 file.source, detail::cpu_name);
  }
  for (auto& [generator, state] : accepted) {
    const std::scoped_lock lock(generator->mutex());
    generator->set_state(state);
  }
  return absent;
}

}  // namespace accel
