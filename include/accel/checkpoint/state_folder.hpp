// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A saved state: a folder of parts and a manifest (`accel_state.json`) that lists them. All ranks
// write one together; it gets its name only when it is whole. What the parts hold is the caller's
// business (state_tensors.hpp adds named tensors); names and rotation of several states are
// checkpoint_series.hpp. Needs no LibTorch and no process group: the ranks agree through a
// callable.
#pragma once

#include <accel/checkpoint/file.hpp>
#include <accel/checkpoint/manifest.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// The ranks that save together. All see the folder through one file system.
struct SaveGroup {
  int rank = 0;
  int size = 1;

  /// Collective: true on every rank if every rank said true, else false on every rank. Needed where
  /// size > 1.
  std::function<bool(bool)> all_agree;
};

/// What one rank puts into a state. Filling it writes nothing yet.
class StateParts {
 public:
  using Writer = std::function<void(OutputFile&)>;

  /// `name` is the file's, e.g. "model.safetensors"; `writer` is called once, while the state is
  /// written.
  void add(std::string name, Writer writer);

  /// Becomes `<part>.json`. A number that JSON cannot hold (NaN, infinity) is refused, naming its
  /// place.
  void add_json(const std::string& part, const nlohmann::json& value);

  [[nodiscard]] const std::map<std::string, Writer>& parts() const noexcept { return parts_; }

 private:
  std::map<std::string, Writer> parts_;
};

/// Writes a state. Every rank must call this. Rank 0 publishes; the others add the parts that are
/// theirs alone (`random_states_<rank>.safetensors`). `fill` runs on every rank and may throw.
///
/// Until the new state is whole and on the disk, an old one of the same name stays valid. A fault
/// on any rank ends in an Error on all, with nothing published. Files in the folder that no save
/// wrote are kept. `run` is written into the manifest; checkpoint_series.hpp rotates only states of
/// its own run.
void write_state_folder(const std::filesystem::path& folder, const SaveGroup& group,
                        const std::function<void(StateParts&)>& fill, const std::string& run = {});

/// A whole state, opened for reading. Local.
class StateFolder {
 public:
  /// Checks that each part of the manifest is there with its size; the Error names the parts that
  /// are not. So does the one for a save that was interrupted.
  explicit StateFolder(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }

  /// How many ranks wrote it.
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  /// The run that wrote it; empty if it was not given.
  [[nodiscard]] const std::string& run() const noexcept { return run_; }

  [[nodiscard]] bool contains(std::string_view name) const { return parts_.contains(name); }

  /// Where a part is. Throws, naming part and folder, if the state has none of that name.
  [[nodiscard]] std::filesystem::path file(std::string_view name) const;

  /// The content of `<part>.json`.
  [[nodiscard]] nlohmann::json json(std::string_view part) const;

 private:
  std::filesystem::path folder_;
  int ranks_ = 1;
  std::string run_;
  std::map<std::string, std::uint64_t, std::less<>> parts_;
};

}  // namespace accel
