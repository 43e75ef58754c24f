// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/grad_scaler.hpp>
#include <accel/detail/error.hpp>

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace accel {

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), state_{options.init_scale, 0} {
  // The scale is kept as a float, as PyTorch keeps it.
  const auto scale = static_cast<float>(options.init_scale);
  if (!(scale > 0) || !std::isfinite(scale) || !std::isfinite(options.growth_factor) ||
      !(options.growth_factor > 1) || !(options.backoff_factor > 0) ||
      !(options.backoff_factor < 1) || options.growth_interval < 1)
    detail::fail(
        ErrorCategory::config,
        "accel: a gradient scaler needs a finite init_scale > 0 and growth_factor > 1, 0 < "
        "backoff_factor < 1 and growth_interval >= 1, and got {}, {}, {}, {}",
        options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  return loss * at::scalar_tensor(state_.scale,
                                  at::TensorOptions().dtype(at::kFloat).device(loss.device()));
}

bool GradScaler::unscale_(const std::vector<at::Tensor>& gradients) {
  unscaled_ = true;
  // One kernel call a device and dtype; the inverse in double first, as Python does.
  const double inverse = 1.0 / state_.scale;
  std::map<std::pair<c10::Device, c10::ScalarType>, std::vector<at::Tensor>,
           bool (*)(const std::pair<c10::Device, c10::ScalarType>&,
                    const std::pair<c10::Device, c10::ScalarType>&)>
      groups([](const auto& a, const auto& b) {
        const auto rank = [](const auto& key) {
          return std::tuple(static_cast<int>(key.first.type()), key.first.index(),
                            static_cast<int>(key.second));
        };
        return rank(a) < rank(b);
      });
  for (const auto& gradient : gradients)
    if (gradient.defined()) groups[{gradient.device(), gradient.scalar_type()}].push_back(gradient);
  bool finite = true;
  for (auto& [key, members] : groups) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(key.first);
    auto found = at::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(members, found, at::full({1}, inverse, options));
    finite = finite && found.item<float>() == 0.0f;
  }
  overflowed_ = overflowed_ || !finite;
  return finite;
}

void GradScaler::update() {
  if (!unscaled_) return;
  // The rule of at::_amp_update_scale_, in its type: a growth that leaves the finite floats does
  // not happen.
  if (overflowed_) {
    state_.scale = static_cast<float>(state_.scale * options_.backoff_factor);
    state_.growth_tracker = 0;
    skips_ = state_.scale < 1.0 ? skips_ + 1 : 0;
  } else {
    skips_ = 0;
    if (++state_.growth_tracker == options_.growth_interval) {
      const auto grown = static_cast<float>(state_.scale * options_.growth_factor);
      if (std::isfinite(grown)) state_.scale = grown;
      state_.growth_tracker = 0;
    }
  }
  unscaled_ = overflowed_ = false;
  if (skips_ >= options_.max_skips)
    detail::fail(ErrorCategory::numeric,
                 "accel: the gradients were not finite in {} windows in a row, though the loss "
                 "scale is down to {}; the loss itself is probably NaN or infinite. Lower the "
                 "learning rate, clip, or train in bf16",
                 skips_, state_.scale);
}

void GradScaler::load_state(const GradScalerState& state) {
  if (!(state.scale > 0) || state.growth_tracker < 0)
    detail::fail(
        ErrorCategory::checkpoint,
        "accel: a scaler's state needs scale > 0 and growth_tracker >= 0, and has {} and {}",
        state.scale, state.growth_tracker);
  state_ = state;
  unscaled_ = overflowed_ = false;
  skips_ = 0;
}

}  // namespace accel
