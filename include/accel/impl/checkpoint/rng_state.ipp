// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/rng_state.hpp.
#include <accel/checkpoint/rng_state.hpp>

#include <accel/detail/error.hpp>

#include <ATen/Context.h>

#include <algorithm>
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

namespace detail {
namespace {

struct Accepted {
  std::vector<std::pair<at::Generator, at::Tensor>> states;
  std::vector<std::string> absent;  ///< names of generators that are not here
};

/// A clone takes each state first: LibTorch checks it only while setting it, and one bad state must
/// not leave the other generators half restored.
Accepted accept(const Safetensors& file) {
  auto generators = default_generators();
  Accepted accepted;
  for (const auto& [name, state] : file.tensors) {
    const auto here =
        std::ranges::find_if(generators, [&](const auto& known) { return known.first == name; });
    if (here == generators.end()) {
      accepted.absent.push_back(name);
      continue;
    }
    auto& generator = here->second;
    try {
      auto trial = [&] {
        const std::scoped_lock lock(generator.mutex());
        return generator.clone();
      }();
      trial.set_state(state);
    } catch (const c10::Error& problem) {
      fail(ErrorCategory::checkpoint, "{}: {} is not a generator's state: {}", file.source, name,
           problem.what_without_backtrace());
    }
    accepted.states.emplace_back(generator, state);
  }
  if (!file.tensors.contains(cpu_name)) {
    fail(ErrorCategory::checkpoint, "{} has no {}, the state of the CPU's generator", file.source,
         cpu_name);
  }
  return accepted;
}

}  // namespace
}  // namespace detail

std::vector<std::string> load_rng_state(const Safetensors& file) {
  auto accepted = detail::accept(file);
  for (auto& [generator, state] : accepted.states) {
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(state);
  }
  return std::move(accepted.absent);
}

void check_rng_state(const Safetensors& file) { (void)detail::accept(file); }

}  // namespace accel
