// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Ends a training whose metric no longer gets better. Counts only; with an accelerator's trigger all
// ranks end together.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <limits>

namespace accel {

/// Which metrics are better.
enum class BestIs { lowest, highest };

struct EarlyStoppingOptions {
  std::int64_t patience = 3;     ///< metrics without an improvement that are put up with
  double min_delta = 0;          ///< what is less than this is no improvement
  BestIs mode = BestIs::lowest;  ///< a loss; `highest` for an accuracy
};

/// Compares each metric with the best so far. NaN is never better.
class EarlyStopping {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  /// Takes a metric; true once `patience` + 1 of them in a row were no improvement. Local: ranks that
  /// have different metrics may differ.
  bool step(double metric);

  /// The same, and true on every rank as soon as it is on one: an accelerator's set_trigger and
  /// check_trigger. Every rank must call this.
  template <class Accelerator>
  bool step(Accelerator& accelerator, double metric) {
    if (step(metric)) accelerator.set_trigger();
    return accelerator.check_trigger();
  }

  [[nodiscard]] double best() const noexcept { return best_; }
  /// Metrics since the best one.
  [[nodiscard]] std::int64_t waited() const noexcept { return waited_; }

  /// For `register_for_checkpointing`.
  [[nodiscard]] nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  [[nodiscard]] double worst() const noexcept;

  EarlyStoppingOptions options_;
  double best_;
  std::int64_t waited_ = 0;
};

}  // namespace accel
