// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A scope in which LibTorch's profiler (Kineto) records what runs and for how long, written as a
// Chrome trace, a file a rank: for chrome://tracing and ui.perfetto.dev. The profiler itself is
// LibTorch's; this header includes nothing of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

namespace accel {

/// What the profiler does in a step.
enum class ProfileAction { none, warmup, record, record_and_save };

/// Which steps are recorded, as torch.profiler.schedule has it: after `skip_first` steps, cycles of
/// `wait` steps without the profiler, `warmup` steps in which it runs and what it sees is dropped,
/// and `active` steps that are recorded; `repeat` cycles, or without end for 0. With `active` 0
/// there are no cycles: everything is recorded.
struct ProfileSchedule {
  std::int64_t wait = 0;
  std::int64_t warmup = 0;
  std::int64_t active = 0;
  std::int64_t repeat = 0;
  std::int64_t skip_first = 0;

  /// What is done in a step, counted from 0.
  [[nodiscard]] ProfileAction action(std::int64_t step) const noexcept;
};

/// Accelerate's ProfileKwargs, without what records Python.
struct ProfileOptions {
  std::filesystem::path output_trace_dir = "profile";  ///< is made where it does not exist
  ProfileSchedule schedule{};
  bool record_shapes = false;   ///< of the inputs of operators
  bool profile_memory = false;  ///< what operators allocate and free
  bool with_flops = false;      ///< of matrix products and convolutions
  /// Called with each trace that was written.
  std::function<void(const std::filesystem::path& trace)> on_trace_ready{};
};

/// Records from its construction to its destruction what this thread runs, and the backward passes
/// and device kernels that it starts:
///
///     {
///       accel::Profile profile({.schedule = {.wait = 1, .warmup = 1, .active = 3, .repeat = 1}}, rank);
///       for (auto& batch : loader) {
///         { RECORD_USER_SCOPE("forward"); ... }
///         profile.step();
///       }
///     }
///
/// leaves `profile_<rank>.json`, and for further cycles `profile_<rank>_<cycle>.json`. One at a time
/// in a process, which is what Kineto can do. Local.
class Profile {
 public:
  explicit Profile(ProfileOptions options = {}, int rank = 0);
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
  /// Stops; what cannot be written is said on standard error, since a destructor cannot throw.
  ~Profile();

  /// Says that a step is over. Recorded steps are ranges of their own, `ProfilerStep#<number>`.
  void step();
  /// Ends the recording and writes what is not written yet; nothing after it is recorded.
  void stop();

  /// The traces that were written so far.
  [[nodiscard]] const std::vector<std::filesystem::path>& traces() const noexcept {
    return traces_;
  }

 private:
  struct Recording;

  void begin(ProfileAction action);
  void save();

  ProfileOptions options_;
  int rank_;
  std::int64_t step_ = 0;
  bool stopped_ = false;
  std::unique_ptr<Recording> recording_;
  std::vector<std::filesystem::path> traces_;
};

}  // namespace accel
