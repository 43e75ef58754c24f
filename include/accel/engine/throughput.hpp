// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How fast a training goes: steps, samples and tokens a second, over the last steps and over all.
// Counts what it is told; printing and recording is the caller's (track/).
#pragma once

#include <accel/comm/communicator.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>

namespace accel {

struct ThroughputOptions {
  std::int64_t warmup = 1;   ///< first steps that are not counted: allocators and caches fill
  std::int64_t window = 50;  ///< steps that `recent` looks back
  /// What the time is; for tests.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
};

/// What was done in some time. Rates are 0 before there is a time.
struct ThroughputRates {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  double seconds = 0;

  [[nodiscard]] double steps_per_second() const noexcept { return rate(steps); }
  [[nodiscard]] double samples_per_second() const noexcept { return rate(samples); }
  [[nodiscard]] double tokens_per_second() const noexcept { return rate(tokens); }

  /// All ranks together: the sums of samples and tokens, in the time of the slowest; steps are those
  /// of the rank that made fewest, since ranks make the same ones. Every rank must call this.
  [[nodiscard]] ThroughputRates over_ranks(const Communicator& communicator,
                                           const CallSite& where = CallSite::current()) const;

 private:
  [[nodiscard]] double rate(std::int64_t count) const noexcept {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  }
};

/// Counts the steps of a loop. Work on a device goes on after a step returns: over many steps that
/// evens out, as the loop waits for it sooner or later.
class Throughput {
 public:
  explicit Throughput(ThroughputOptions options = {});

  /// Says that a step is over, and what this rank did in it.
  void step(std::int64_t samples, std::int64_t tokens = 0);
  /// Says that the time since the last step was no training: an evaluation, a checkpoint.
  void pause_ended();

  /// Of the last `window` steps.
  [[nodiscard]] ThroughputRates recent() const noexcept { return recent_; }
  /// Of all steps after the warm-up.
  [[nodiscard]] ThroughputRates overall() const noexcept { return overall_; }

 private:
  ThroughputOptions options_;
  std::chrono::steady_clock::time_point last_;
  std::int64_t seen_ = 0;
  std::deque<ThroughputRates> window_;
  ThroughputRates recent_;
  ThroughputRates overall_;
};

}  // namespace accel
