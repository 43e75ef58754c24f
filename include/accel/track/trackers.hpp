// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The trackers of one run: what `log_with` named, opened at init_trackers, fed by log, closed by
// end_training. Acts on the main process only. Comes after tracker.hpp, json_lines.hpp and
// tensorboard.hpp; the accelerator's members of the same names forward to it.
#pragma once

#include <accel/track/tracker.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accel {

/// One entry of `log_with`: the name of a tracker of this library ("json_lines", "tensorboard", or
/// "all" of them), or a tracker object of your own.
class TrackerChoice {
 public:
  TrackerChoice(std::string name) : name_(std::move(name)) {}
  TrackerChoice(const char* name) : name_(name) {}
  template <class T>
    requires(!std::same_as<T, TrackerChoice> && std::constructible_from<AnyTracker, T> &&
             !std::convertible_to<T, std::string>)
  TrackerChoice(T tracker) : tracker_(AnyTracker(std::move(tracker))) {}

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The object; blank for a tracker that is named.
  [[nodiscard]] const AnyTracker& tracker() const noexcept { return tracker_; }

 private:
  std::string name_;
  AnyTracker tracker_;
};

/// Every rank makes one and calls the same members; on ranks other than the main process they check
/// their arguments and do nothing. No member communicates.
class Trackers {
 public:
  /// Throws Error(config) on every rank where a name is unknown, comes twice, or needs a folder and
  /// `folder` is empty. `warn` receives a sentence on the main process; without it they go to
  /// standard error.
  Trackers(bool is_main, std::vector<TrackerChoice> log_with, std::filesystem::path folder = {},
           std::function<void(const std::string&)> warn = {});
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;
  /// Ends the run if end_training was not called.
  ~Trackers();

  /// Opens the trackers, with files in `<folder>/<project_name>` (an empty name: in the folder
  /// itself), and stores the configuration in each. A run is open until end_training.
  void init_trackers(std::string_view project_name, const Json& config = nullptr);

  /// Gives a record to every tracker. Without a step it is the one after the last (the first is 0).
  /// A step lower than the last is kept, with one warning a run. What is left out of the record is
  /// said once a name. An error of one tracker is thrown after the others have their record.
  void log(const Record& record, std::optional<std::int64_t> step = std::nullopt);

  /// The tracker of that name; blank on other ranks. Error(usage) on every rank if no such name was
  /// asked for.
  [[nodiscard]] AnyTracker get_tracker(std::string_view name) const;

  /// Finishes every tracker. Calling it again does nothing.
  void end_training();

 private:
  void warn_once(const std::string& key, const std::string& sentence);

  bool is_main_;
  std::vector<TrackerChoice> choices_;
  std::filesystem::path folder_;
  std::function<void(const std::string&)> warn_;
  bool open_ = false;
  std::vector<AnyTracker> trackers_;
  std::optional<std::int64_t> last_step_;
  std::set<std::string> warned_;
};

}  // namespace accel
