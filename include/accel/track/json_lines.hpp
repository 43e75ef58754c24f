// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The tracker that writes text anybody can read: metrics.jsonl, one JSON object a record, and
// config.json. Comes after record.hpp; history.hpp reads the file back.
#pragma once

#include <accel/track/append_file.hpp>
#include <accel/track/record.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace accel {

/// Writes `<folder>/metrics.jsonl` and `<folder>/config.json`.
///
///     {"step":0,"time":1767225600.25,"loss":1.5,"eval/acc":0.5,"eval/n":3,"note":"x"}
///
/// - `time` is in seconds since 1970. A value of yours named "step" or "time" is written as "step_"
///   or "time_".
/// - JSON has no word for values that are not finite; they are the strings "NaN", "Infinity" and
///   "-Infinity" (protobuf's JSON form, and MLflow's and W&B's), which Python's float(), pandas and
///   JavaScript's Number() read back.
/// - Each record is with the operating system when `log` returns. A line that was cut off all the
///   same (a full disk, a lost machine) is removed when the file is opened again, so that every
///   line is valid.
/// - Records are appended in the order in which they are logged, whatever their step: a run that
///   resumes from a checkpoint writes some steps again. For readers, a later line replaces the
///   values that an earlier one gave for the same name at the same or a higher step.
class JsonLines {
 public:
  explicit JsonLines(const std::filesystem::path& folder);

  [[nodiscard]] static constexpr std::string_view name() { return "json_lines"; }
  /// Writes config.json. If another configuration is there already, that one is kept as
  /// config-1.json (2, 3, ...).
  void store_init_configuration(const Json& config);
  void log(const Record& record, std::int64_t step);
  void finish() noexcept { file_.close(); }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path path_;
  detail::AppendFile file_;
};

namespace detail {

/// `value` with numbers that are not finite, at any depth, as the strings that JsonLines documents.
Json finite_json(Json value);

}  // namespace detail
}  // namespace accel
