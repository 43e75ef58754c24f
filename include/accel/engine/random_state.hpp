// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The default generators as they were, for a computation that is to draw the same numbers again.
// Beside seed.hpp; recompute.hpp and operator_tape.hpp run computations a second time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace accel::detail {

/// The state of the CPU's default generator and those of some other devices.
class RandomState {
 public:
  /// As it is now. Devices may come more than once, and the CPU need not be among them.
  explicit RandomState(const std::vector<c10::Device>& devices);
  void restore() const;
  /// That of the same generators now.
  [[nodiscard]] RandomState now() const;
  /// That of the CPU's generator, a tensor of bytes.
  [[nodiscard]] const at::Tensor& of_cpu() const { return states_.front().second; }
  [[nodiscard]] bool is_of_cpu_only() const noexcept { return states_.size() == 1; }
  void set_of_cpu(const at::Tensor& state) { states_.front().second = state; }

 private:
  RandomState() = default;
  void remember(c10::Device device);
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// Within it the generators are in another state; then they are as they were before.
class RandomStateScope {
 public:
  explicit RandomStateScope(const RandomState& state) : before_(state.now()) { state.restore(); }
  ~RandomStateScope() { before_.restore(); }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  RandomState before_;
};

/// The devices of some tensors.
[[nodiscard]] std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors);

}  // namespace accel::detail
