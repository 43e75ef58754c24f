// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/checkpoint_series.hpp.
#include <accel/checkpoint/checkpoint_series.hpp>

#include <accel/detail/error.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <random>
#include <ranges>
#include <system_error>
#include <utility>

namespace accel {
namespace detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view checkpoint_prefix = "checkpoint_";
constexpr std::string_view removed_suffix = ".removed";

fs::path checkpoint_path(const fs::path& root, std::int64_t number) {
  return root / fmt::format("{}{}", checkpoint_prefix, number);
}

// Folders with automatic names, by number: 9 before 10.
std::map<std::int64_t, fs::path> numbered_folders(const fs::path& root) {
  std::map<std::int64_t, fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto number = checkpoint_number(entry->path().filename().string())) {
      folders.emplace(*number, entry->path());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorCategory::checkpoint, "cannot list {}: {}", root.string(), error.message());
  }
  return folders;
}

std::optional<std::string> run_of(const fs::path& folder) {
  try {
    return StateFolder(folder).run();
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string random_run() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

// A removal that is interrupted leaves a folder that no longer has an automatic name, so that it is
// not taken for a damaged state; the next rotation finishes it.
void finish_removals(const fs::path& root) {
  std::error_code ignored;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator entry(root, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const auto& path = entry->path();
    if (path.extension() == removed_suffix && checkpoint_number(path.stem().string())) {
      leftovers.push_back(entry->path());
    }
  }
  for (const auto& leftover : leftovers) {
    fs::remove_all(leftover, ignored);
  }
}

}  // namespace
}  // namespace detail

std::optional<std::int64_t> checkpoint_number(std::string_view name) {
  if (!name.starts_with(detail::checkpoint_prefix)) {
    return std::nullopt;
  }
  const auto digits = name.substr(detail::checkpoint_prefix.size());
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  // Only the spelling that a save gives: no sign, no leading zero. The largest number has no
  // successor, so it is no name.
  const bool canonical = error == std::errc() && number >= 0 && number < INT64_MAX &&
                         digits == fmt::format_int(number).str();
  return canonical ? std::optional(number) : std::nullopt;
}

std::optional<std::filesystem::path> latest_complete(const std::filesystem::path& root) {
  const auto folders = detail::numbered_folders(root);
  const auto newest_first = std::views::reverse(folders);
  const auto found = std::ranges::find_if(
      newest_first, [](const auto& item) { return detail::run_of(item.second).has_value(); });
  return found == newest_first.end() ? std::nullopt : std::optional(found->second);
}

CheckpointSeries::CheckpointSeries(std::filesystem::path root,
                                   std::optional<std::int64_t> total_limit)
    : root_(std::move(root)), total_limit_(total_limit), run_(detail::random_run()) {
  if (total_limit_ && *total_limit_ < 1) {
    detail::fail(ErrorCategory::config,
                 "total_limit is {}; at least one state must be kept, give 1 or more",
                 *total_limit_);
  }
}

std::filesystem::path CheckpointSeries::next() const {
  const auto folders = detail::numbered_folders(root_);
  const auto above = folders.empty() ? 0 : folders.rbegin()->first + 1;
  return detail::checkpoint_path(root_, std::max(next_, above));
}

SavedCheckpoint CheckpointSeries::save(const SaveGroup& group,
                                       const std::function<void(StateParts&)>& fill) {
  SavedCheckpoint saved;
  saved.folder = next();
  write_state_folder(saved.folder, group, fill, run_);
  const auto number = *checkpoint_number(saved.folder.filename().string());
  next_ = number + 1;
  if (group.rank == 0 && total_limit_) {
    rotate(number, saved);
  }
  return saved;
}

void CheckpointSeries::resume(const StateFolder& state) {
  if (!state.run().empty()) {
    run_ = state.run();
  }
}

void CheckpointSeries::rotate(std::int64_t newest, SavedCheckpoint& saved) const {
  detail::finish_removals(root_);
  std::vector<std::filesystem::path> own;
  for (const auto& [number, folder] : detail::numbered_folders(root_)) {
    if (number < newest && detail::run_of(folder) == run_) {
      own.push_back(folder);
    }
  }
  const auto kept = static_cast<std::size_t>(*total_limit_ - 1);
  for (std::size_t index = 0; index + kept < own.size(); ++index) {
    auto removed = own[index];
    removed += detail::removed_suffix;
    std::error_code error;
    std::filesystem::rename(own[index], removed, error);
    if (!error) {
      std::filesystem::remove_all(removed, error);
    }
    if (error) {
      saved.warnings.push_back(
          fmt::format("cannot remove {}: {}", own[index].string(), error.message()));
    } else {
      saved.removed.push_back(own[index]);
    }
  }
}

}  // namespace accel
