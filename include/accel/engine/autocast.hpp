// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Autocast as a scope. LibTorch has the switches and leaves restoring them, and the cache of cast
// weights, to the caller. Comes after policy/precision.hpp, which says when to cast;
// prepared_model.hpp opens a scope around each forward.
#pragma once

#include <accel/policy/element_type.hpp>

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace accel {

/// LibTorch's name of an element type.
[[nodiscard]] constexpr c10::ScalarType scalar_type(element_type type) noexcept {
  switch (type) {
    case element_type::float64: return c10::ScalarType::Double;
    case element_type::bfloat16: return c10::ScalarType::BFloat16;
    case element_type::float16: return c10::ScalarType::Half;
    case element_type::float32: break;
  }
  return c10::ScalarType::Float;
}

/// Runs the operations of this thread in `compute_type` where LibTorch's autocast lists say so,
/// until the scope ends, however it ends. Scopes nest; an inner one may be disabled. Leaving the
/// outermost one empties the cache of cast weights, as Python's `torch.autocast` does: its entries
/// are keyed by the weight's identity, so that one left behind would be taken for the weight after
/// an optimizer step.
class AutocastScope {
 public:
  /// A scope that changes nothing.
  explicit AutocastScope(c10::DeviceType device)
      : AutocastScope(device, at::autocast::get_autocast_dtype(device),
                      at::autocast::is_autocast_enabled(device)) {}
  AutocastScope(c10::DeviceType device, c10::ScalarType compute_type, bool enabled = true)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        previous_type_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, compute_type);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_dtype(device_, previous_type_);
    at::autocast::set_autocast_enabled(device_, was_enabled_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType previous_type_;
};

namespace detail {

/// For whoever has written into weights other than by a prepared optimizer's step: a region that is
/// open would go on with the cast weights that it has.
inline void forget_cast_weights() { at::autocast::clear_cache(); }

/// Autocast of the two devices that have it, as it is.
struct AutocastState {
  struct OfDevice {
    c10::DeviceType device;
    bool enabled = at::autocast::is_autocast_enabled(device);
    c10::ScalarType type = at::autocast::get_autocast_dtype(device);
    void restore() const {
      at::autocast::set_autocast_enabled(device, enabled);
      at::autocast::set_autocast_dtype(device, type);
    }
  };
  OfDevice cpu{at::kCPU}, cuda{at::kCUDA};
};

/// A scope in which autocast is as it was, and remembers no cast weight: what is cast again has no
/// graph, and would be taken for the weight that has one. The cache, which all threads share, stays
/// as it is: another one may be in the middle of a forward.
class AutocastStateScope {
 public:
  explicit AutocastStateScope(const AutocastState& state)
      : caches_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
    state.cpu.restore();
    state.cuda.restore();
  }
  ~AutocastStateScope() {
    before_.cpu.restore();
    before_.cuda.restore();
    at::autocast::set_autocast_cache_enabled(caches_);
  }
  AutocastStateScope(const AutocastStateScope&) = delete;
  AutocastStateScope& operator=(const AutocastStateScope&) = delete;

 private:
  AutocastState before_{};
  bool caches_;
};

}  // namespace detail
}  // namespace accel
