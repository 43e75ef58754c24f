// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/profile.hpp>

#include <accel/detail/error.hpp>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace accel {

using detail::fail;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

namespace {

/// Kineto has one session a process; a second one would end the first.
std::atomic<bool> taken{false};

}  // namespace

ProfileAction ProfileSchedule::action(std::int64_t step) const noexcept {
  // torch/profiler/profiler.py, schedule.
  if (active == 0) return ProfileAction::record;
  if (step < skip_first) return ProfileAction::none;
  step -= skip_first;
  const auto cycle = wait + warmup + active;
  if (repeat > 0 && step >= repeat * cycle) return ProfileAction::none;
  const auto place = step % cycle;
  if (place < wait) return ProfileAction::none;
  if (place < wait + warmup) return ProfileAction::warmup;
  return place < cycle - 1 ? ProfileAction::record : ProfileAction::record_and_save;
}

/// From the first step of a warm-up to the end of the recording.
struct Profile::Recording {
  /// A range in the trace for one step.
  class StepRange {
   public:
    explicit StepRange(std::int64_t step) : name_(fmt::format("ProfilerStep#{}", step)) {
      if (range_.isActive()) range_.before(std::string_view(name_));
    }

   private:
    std::string name_;  // which the range refers to
    at::RecordFunction range_{at::RecordScope::USER_SCOPE};
  };

  explicit Recording(const ProfileOptions& options)
      : config(ProfilerState::KINETO, options.record_shapes, options.profile_memory,
               /*with_stack=*/false, options.with_flops) {
#ifdef ACCEL_WITH_CUDA
    activities.insert(ActivityType::CUDA);
#endif
    torch::autograd::profiler::prepareProfiler(config, activities);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    range.reset();
    if (!enabled) return;
    try {
      (void)torch::autograd::profiler::disableProfiler();
    } catch (const std::exception&) {
      // Nobody wants this recording any more.
    }
  }

  void enable() {
    torch::autograd::profiler::enableProfiler(
        config, activities,
        {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
         at::RecordScope::USER_SCOPE});
    enabled = true;
  }

  ProfilerConfig config;
  std::set<ActivityType> activities{ActivityType::CPU};
  bool enabled = false;
  std::optional<StepRange> range;
};

Profile::Profile(ProfileOptions options, int rank) : options_(std::move(options)), rank_(rank) {
  const auto& [wait, warmup, active, repeat, skip_first] = options_.schedule;
  if (wait < 0 || warmup < 0 || active < 0 || repeat < 0 || skip_first < 0)
    fail(ErrorCategory::config,
         "accel: rank {}: a profile's schedule has wait {}, warmup {}, active {}, repeat {} and "
         "skip_first {}; give numbers of steps, from 0",
         rank_, wait, warmup, active, repeat, skip_first);
  if (active == 0 && (wait > 0 || warmup > 0 || repeat > 0 || skip_first > 0))
    fail(ErrorCategory::config,
         "accel: rank {}: a profile's schedule has active 0, so that no step of it would be "
         "recorded; give the number of steps to record, or no schedule",
         rank_);
  if (taken.exchange(true))
    fail(ErrorCategory::usage,
         "accel: rank {}: a process has one profile at a time, and one is recording; let its scope "
         "end first (with ranks that are threads, profile on one of them)",
         rank_);
  try {
    begin(options_.schedule.action(step_));
  } catch (...) {
    taken = false;
    throw;
  }
}

Profile::~Profile() {
  try {
    stop();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
}

void Profile::begin(ProfileAction action) {
  if (action == ProfileAction::none) {
    recording_.reset();
    return;
  }
  if (!recording_) recording_ = std::make_unique<Recording>(options_);
  if (action == ProfileAction::warmup) return;
  if (!recording_->enabled) recording_->enable();
  // Without a schedule, calls of `step` are not needed: then there are no steps to show.
  if (options_.schedule.active > 0 || step_ > 0) recording_->range.emplace(step_);
}

void Profile::step() {
  if (stopped_) return;
  if (recording_) recording_->range.reset();
  if (options_.schedule.action(step_) == ProfileAction::record_and_save) save();
  begin(options_.schedule.action(++step_));
}

void Profile::stop() {
  if (std::exchange(stopped_, true)) return;
  struct Release {
    ~Release() { taken = false; }
  } const release;
  if (recording_ && recording_->enabled) save();
  recording_.reset();
}

void Profile::save() {
  const auto recording = std::exchange(recording_, nullptr);
  recording->range.reset();
  recording->enabled = false;
  const auto result = torch::autograd::profiler::disableProfiler();
  const auto cycle = traces_.size();
  const auto file =
      options_.output_trace_dir / (cycle == 0 ? fmt::format("profile_{}.json", rank_)
                                              : fmt::format("profile_{}_{}.json", rank_, cycle));
  // Kineto only logs that it could not write; a trace has its name when it is whole.
  auto partial = file;
  partial += ".partial";
  std::error_code problem;
  std::filesystem::create_directories(options_.output_trace_dir, problem);
  std::filesystem::remove(partial, problem);
  result->save(partial.string());
  std::filesystem::rename(partial, file, problem);
  if (problem)
    fail(ErrorCategory::data,
         "accel: rank {}: the trace {} could not be written ({}); give output_trace_dir a folder "
         "that can be written to",
         rank_, file.string(), problem.message());
  traces_.push_back(file);
  if (options_.on_trace_ready) options_.on_trace_ready(file);
}

}  // namespace accel
