// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A progress bar for the loop: how far, how fast, how long still, and the values that matter.
// Counts and words are made here; console.hpp draws them. Nothing of it is kept after the run;
// trackers do that.
#pragma once

#include <accel/track/console.hpp>
#include <accel/track/record.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace accel {

struct ProgressOptions {
  std::optional<std::int64_t> total{};  ///< steps to go; unknown if empty
  std::string description{};            ///< in front of the bar
  std::string unit = "step";            ///< what update() counts
  std::int64_t initial = 0;             ///< done before this run, by a run that is resumed
  bool enabled = true;                  ///< give `is_main_process`, so that one process draws
  bool leave = true;                    ///< keep the last line; false wipes it
  bool memory = false;                  ///< show the resident memory of this process
  std::chrono::milliseconds redraw_every{100};  ///< on a terminal, at most
  std::chrono::milliseconds line_every{5000};   ///< on anything else, at most
  std::shared_ptr<Console> console{};           ///< default: standard error
  /// What the time is; for tests.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
};

/// On a terminal, one line that is drawn over and over:
///
///     epoch 1:  42%|████████▍           | 197/469 [00:12<00:16, 16.3 step/s, loss=0.4127]
///
/// On a pipe or in a file, plain lines, one every few seconds and the last:
///
///     epoch 1: 197/469 step (42%), 00:12 gone, 00:16 to go, 16.3 step/s, loss=0.4127
///
/// The rate leans to the last seconds (as tqdm's), except in the last line, which has the mean.
/// Threads may share one.
class Progress {
 public:
  explicit Progress(ProgressOptions options = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Closes it.
  ~Progress();

  /// `count` more are done.
  void update(std::int64_t count = 1);
  /// The values behind the rate, shown from the next update on; numbers have four digits.
  void set_postfix(const Record& values);
  void set_description(std::string description);
  /// Draws the last state and lets go of the console. Calling it again, or update after it, does
  /// nothing.
  void close();

  [[nodiscard]] std::int64_t count() const;

 private:
  using Time = std::chrono::steady_clock::time_point;

  [[nodiscard]] bool is_due(Time now) const;
  void draw(Time now);
  void measure(Time now);
  [[nodiscard]] double mean_rate(Time now) const;
  [[nodiscard]] std::string bar_line(Time now, double rate) const;
  [[nodiscard]] std::string plain_line(Time now, double rate) const;

  ProgressOptions options_;
  mutable std::mutex mutex_;
  bool active_;
  std::int64_t count_;
  std::string postfix_;
  Time start_;
  Time drawn_;
  // Two decayed sums, of counts and of seconds: their ratio is the rate, right from the first
  // measurement on.
  Time measured_;
  std::int64_t measured_count_;
  double recent_count_ = 0;
  double recent_seconds_ = 0;
};

}  // namespace accel
