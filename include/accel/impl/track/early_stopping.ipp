// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/early_stopping.hpp>

#include <accel/detail/error.hpp>

#include <nlohmann/json.hpp>

#include <cmath>

namespace accel {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(options), best_(worst()) {
  if (options_.patience < 0 || !(options_.min_delta >= 0))
    detail::fail(ErrorCategory::config,
                 "accel: EarlyStopping needs a patience and a min_delta from 0, and got {} and {}",
                 options_.patience, options_.min_delta);
}

double EarlyStopping::worst() const noexcept {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  return options_.mode == BestIs::lowest ? infinity : -infinity;
}

bool EarlyStopping::step(double metric) {
  const bool better = options_.mode == BestIs::lowest ? metric < best_ - options_.min_delta
                                                      : metric > best_ + options_.min_delta;
  waited_ = better ? 0 : waited_ + 1;
  if (better) best_ = metric;
  return waited_ > options_.patience;
}

nlohmann::json EarlyStopping::state() const {
  // JSON has no infinity: before the first metric there is no best one.
  return {{"best", std::isfinite(best_) ? nlohmann::json(best_) : nlohmann::json()},
          {"waited", waited_}};
}

void EarlyStopping::load_state(const nlohmann::json& state) {
  const auto& best = state.at("best");
  const auto waited = state.at("waited").get<std::int64_t>();
  best_ = best.is_null() ? worst() : best.get<double>();
  waited_ = waited;
}

}  // namespace accel
