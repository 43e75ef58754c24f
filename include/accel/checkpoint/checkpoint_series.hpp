// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// States with automatic names, `checkpoint_<i>` in one folder: the next number, the newest whole
// one, and the removal of the oldest beyond a limit. Each state is a state_folder.hpp. Needs no
// LibTorch.
#pragma once

#include <accel/checkpoint/state_folder.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// The number of an automatic name; nothing for any other name, `checkpoint_best` and
/// `checkpoint_007` among them.
std::optional<std::int64_t> checkpoint_number(std::string_view name);

/// The whole state of the highest number in `root`; interrupted and damaged ones are passed over.
/// Local.
std::optional<std::filesystem::path> latest_complete(const std::filesystem::path& root);

/// What a save did.
struct SavedCheckpoint {
  std::filesystem::path folder;
  std::vector<std::filesystem::path> removed;  ///< older states, beyond the limit; on rank 0
  std::vector<std::string>
      warnings;  ///< an older state that could not be removed, and why; on rank 0
};

/// The states that one run saves. Every rank has one, made in the same order of calls.
class CheckpointSeries {
 public:
  /// `total_limit` counts the states of this run that are kept, the newest included; without it all
  /// are.
  explicit CheckpointSeries(std::filesystem::path root,
                            std::optional<std::int64_t> total_limit = std::nullopt);

  /// Where the next save goes: a number above every one that is there, whoever wrote it, so that
  /// nothing is overwritten and the newest state is the one of the highest number.
  [[nodiscard]] std::filesystem::path next() const;

  /// Saves under the next name; then, the new state being whole, rank 0 removes the oldest of this
  /// run beyond the limit. A state of another run, or a folder of another name, is never removed.
  /// Every rank must call this.
  SavedCheckpoint save(const SaveGroup& group, const std::function<void(StateParts&)>& fill);

  /// Makes this run the continuation of the one that wrote `state`, whose states then count towards
  /// the limit.
  void resume(const StateFolder& state);

  /// The name of the run, in the manifest of each of its states.
  [[nodiscard]] const std::string& run() const noexcept { return run_; }

 private:
  void rotate(std::int64_t newest, SavedCheckpoint& saved) const;

  std::filesystem::path root_;
  std::optional<std::int64_t> total_limit_;
  std::string run_;
  std::int64_t next_ = 0;
};

}  // namespace accel
