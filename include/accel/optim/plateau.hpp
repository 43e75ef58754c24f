// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The schedule that watches a metric instead of counting steps, as
// torch.optim.lr_scheduler.ReduceLROnPlateau. It has a memory, so it is no rule and cannot stand in
// a sequence; it lowers the rate at hand, so it goes with a schedule of steps on the same
// optimizer. Comes after lr_rules.hpp.
#pragma once

#include <accel/optim/lr_rules.hpp>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

namespace accel {

/// Whether a metric should fall or rise.
enum class PlateauMode { min, max };

/// Whether a metric counts as better by a share of the best one, or by an amount.
enum class ThresholdMode { rel, abs };

struct PlateauOptions {
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;         ///< what the rates are multiplied by
  std::int64_t patience = 10;  ///< metrics in a row that may be no better
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;  ///< metrics after a reduction that are not counted
  PerGroup min_lr = 0;
  double eps = 1e-8;  ///< a smaller change is not made
};

class ReduceLROnPlateau {
 public:
  /// The optimizer must outlive the schedule.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  /// Takes a metric: the same one on every rank, or the ranks' rates part; a mean over the ranks
  /// is. One that is not a number counts as no better.
  void step(double metric);
  void step(const at::Tensor& metric);

  /// Metrics taken so far.
  [[nodiscard]] std::int64_t last_epoch() const noexcept { return last_epoch_; }
  [[nodiscard]] double best() const noexcept { return best_; }
  [[nodiscard]] std::int64_t num_bad_epochs() const noexcept { return num_bad_epochs_; }
  [[nodiscard]] bool in_cooldown() const noexcept { return cooldown_counter_ > 0; }
  [[nodiscard]] const torch::optim::Optimizer* optimizer() const noexcept { return optimizer_; }
  [[nodiscard]] std::vector<double> get_last_lr() const;

  [[nodiscard]] nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  [[nodiscard]] bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer* optimizer_;
  PlateauOptions options_;
  double best_;
  std::int64_t num_bad_epochs_ = 0;
  std::int64_t cooldown_counter_ = 0;
  std::int64_t last_epoch_ = 0;
};

}  // namespace accel
