// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Dynamic loss scaling for fp16, which LibTorch has only in Python: the loss is multiplied so that
// small gradients do not vanish in 16 bits, the gradients are divided again before the step, a
// window that overflowed is skipped. Values and rules are those of torch.amp.GradScaler. Works on
// CPU and CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace accel {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   ///< after `growth_interval` windows without overflow
  double backoff_factor = 0.5;  ///< after a window with one
  int64_t growth_interval = 2000;
  int64_t max_skips =
      100;  ///< windows skipped in a row at a scale of at most 1 before that is an error
};

/// What a scaler is, apart from its options; saved and restored exactly.
struct GradScalerState {
  double scale = 0;
  int64_t growth_tracker = 0;  ///< windows without overflow since the scale last changed
};

/// One scaler serves all optimizers of an accelerator. Ranks that step on reduced gradients decide the
/// same; those that hold parts of them tell each other what they found, and those that step on their
/// own (no_sync) agree again before they reduce (context.hpp).
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// `loss` times the scale.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients by the scale, in place, and notes whether any is not finite. Gradients
  /// that were divided in this window already must not be given again: the caller keeps that.
  /// Returns whether all are finite.
  bool unscale_(const std::vector<at::Tensor>& gradients);

  /// Notes an overflow in gradients that another rank holds.
  void note_overflow() noexcept { overflowed_ = true; }

  /// Ends the window: the scale grows or backs off by what was noted. Does nothing where nothing
  /// was unscaled. Throws Error(numeric) after `max_skips` windows in a row that overflow though
  /// the scale is 1 or less.
  void update();

  [[nodiscard]] double get_scale() const { return state_.scale; }
  [[nodiscard]] int64_t growth_tracker() const noexcept { return state_.growth_tracker; }
  [[nodiscard]] const GradScalerState& state() const noexcept { return state_; }
  void load_state(const GradScalerState& state);

  /// Goes on with a scale that ranks have agreed on. What was noted in this window stays.
  void adopt(const GradScalerState& agreed) noexcept { state_ = agreed; }

 private:
  GradScalerOptions options_;
  GradScalerState state_;
  bool unscaled_ = false;
  bool overflowed_ = false;
  int64_t skips_ = 0;
};

}  // namespace accel
