// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The tracker that writes TensorBoard's event files: numbers as scalars, texts and the
// configuration as text. Comes after record.hpp; event_file.hpp frames the bytes.
#pragma once

#include <accel/track/append_file.hpp>
#include <accel/track/record.hpp>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace accel {

/// Writes `<folder>/events.out.tfevents.<time>.<host>.<pid>.<n>`; view it with `tensorboard
/// --logdir <folder>`.
///
/// - Scalars are 32-bit floats, as PyTorch's SummaryWriter writes them: a whole number above 2^24
///   loses digits.
/// - A step lower than the last is written as it comes; TensorBoard shows both points.
/// - A run that resumes writes a further file, and TensorBoard joins the files of a folder.
class TensorBoard {
 public:
  explicit TensorBoard(const std::filesystem::path& folder);

  [[nodiscard]] static constexpr std::string_view name() { return "tensorboard"; }
  /// The configuration, as JSON, under the tag "config" of the text page.
  void store_init_configuration(const Json& config);
  void log(const Record& record, std::int64_t step);
  void finish() noexcept { file_.close(); }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  void append(const std::string& event);

  detail::AppendFile file_;
};

}  // namespace accel
