// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/trackers.hpp>
#include <accel/detail/error.hpp>
#include <accel/track/json_lines.hpp>
#include <accel/track/logging.hpp>
#include <accel/track/tensorboard.hpp>

#include <algorithm>
#include <array>
#include <exception>

namespace accel {
namespace {

struct Builtin {
  std::string_view name;
  AnyTracker (*open)(const std::filesystem::path& folder);
};

constexpr std::array builtins = {
    Builtin{JsonLines::name(),
            [](const std::filesystem::path& folder) { return AnyTracker(JsonLines(folder)); }},
    Builtin{TensorBoard::name(),
            [](const std::filesystem::path& folder) { return AnyTracker(TensorBoard(folder)); }},
};

const Builtin* find_builtin(std::string_view name) {
  const auto found = std::ranges::find_if(builtins, [&](auto& each) { return each.name == name; });
  return found == builtins.end() ? nullptr : &*found;
}

std::string name_of(const TrackerChoice& choice) {
  return choice.tracker() ? choice.tracker().name() : choice.name();
}

// "all" replaced by what it stands for; what was named beside it comes once.
std::vector<TrackerChoice> expanded(std::vector<TrackerChoice> choices) {
  std::vector<TrackerChoice> result;
  const bool all = std::ranges::any_of(choices, [](auto& each) { return name_of(each) == "all"; });
  if (all)
    for (const auto& each : builtins) result.emplace_back(std::string(each.name));
  for (auto& each : choices)
    if (!(all && (name_of(each) == "all" || find_builtin(name_of(each)))))
      result.push_back(std::move(each));
  return result;
}

std::string names_of(const std::vector<TrackerChoice>& choices) {
  std::string names;
  for (const auto& each : choices) names += (names.empty() ? "" : ", ") + name_of(each);
  return names;
}

}  // namespace

Trackers::Trackers(bool is_main, std::vector<TrackerChoice> log_with, std::filesystem::path folder,
                   std::function<void(const std::string&)> warn)
    : is_main_(is_main),
      choices_(expanded(std::move(log_with))),
      folder_(std::move(folder)),
      warn_(warn ? std::move(warn)
                 : [](const std::string& sentence) { Logger().warning("{}", sentence); }) {
  std::set<std::string> names;
  for (const auto& choice : choices_) {
    const std::string name = name_of(choice);
    if (!names.insert(name).second)
      detail::fail(ErrorCategory::config,
                   "log_with has two trackers named \"{}\"; give each a name of its own", name);
    if (choice.tracker()) continue;
    if (!find_builtin(name))
      detail::fail(ErrorCategory::config,
                   "log_with names the tracker \"{}\", and this library has json_lines and "
                   "tensorboard (or all); pass an object that satisfies accel::Tracker for another",
                   name);
    if (folder_.empty())
      detail::fail(ErrorCategory::config,
                   "the tracker \"{}\" writes files; set project_dir or logging_dir", name);
  }
}

Trackers::~Trackers() {
  try {
    end_training();
  } catch (...) {
    // A destructor cannot say more; end_training, called by hand, throws what happened.
  }
}

void Trackers::init_trackers(std::string_view project_name, const Json& config) {
  if (open_)
    detail::fail(ErrorCategory::usage,
                 "init_trackers(\"{}\"): the trackers are open already; call end_training() first",
                 project_name);
  if (is_main_) {
    std::vector<AnyTracker> opened;
    for (const auto& choice : choices_)
      opened.push_back(choice.tracker()
                           ? choice.tracker()
                           : find_builtin(choice.name())->open(folder_ / project_name));
    if (!config.is_null())
      for (auto& tracker : opened) tracker.store_init_configuration(config);
    trackers_ = std::move(opened);
  }
  last_step_.reset();
  warned_.clear();
  open_ = true;
}

void Trackers::log(const Record& record, std::optional<std::int64_t> step) {
  if (choices_.empty()) return;
  if (!open_)
    detail::fail(ErrorCategory::usage,
                 "log: the trackers ({}) are not open; call init_trackers first",
                 names_of(choices_));
  if (!is_main_) return;

  const std::int64_t at = step ? *step : last_step_ ? *last_step_ + 1 : 0;
  if (last_step_ && at < *last_step_)
    warn_once(
        "a lower step",
        fmt::format("log: step {} comes after step {}; it is kept as it comes", at, *last_step_));
  for (const auto& skipped : record.skipped())
    warn_once(
        "value " + skipped.key,
        fmt::format("log: \"{}\" is left out, since {}; log a number, a truth value or a text",
                    skipped.key, skipped.reason));

  std::exception_ptr first;
  for (auto& tracker : trackers_) {
    try {
      tracker.log(record, at);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  last_step_ = at;
  if (first) std::rethrow_exception(first);
}

AnyTracker Trackers::get_tracker(std::string_view name) const {
  const bool known =
      std::ranges::any_of(choices_, [&](auto& each) { return name_of(each) == name; });
  if (!known)
    detail::fail(ErrorCategory::usage, "get_tracker(\"{}\"): log_with has {}", name,
                 choices_.empty() ? "no tracker" : names_of(choices_));
  for (const auto& tracker : trackers_)
    if (tracker.name() == name) return tracker;
  return {};
}

void Trackers::end_training() {
  open_ = false;
  std::exception_ptr first;
  for (auto& tracker : std::exchange(trackers_, {})) {
    try {
      tracker.finish();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void Trackers::warn_once(const std::string& key, const std::string& sentence) {
  if (warned_.insert(key).second) warn_(sentence);
}

}  // namespace accel
