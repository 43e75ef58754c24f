// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A file that only grows, for json_lines.hpp and tensorboard.hpp, and a small file written whole.
// Both leave on disk what a reader can use, whenever this process is killed. They know nothing of
// what is in the files.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace accel::detail {

/// Each append goes to the operating system in one write, with no buffer of ours: it survives the
/// end of this process. (It does not survive the machine losing power; that would cost a disk flush
/// a record.)
class AppendFile {
 public:
  AppendFile() = default;
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  /// Opens for appending; creates the file, and the folders above it, where they are missing.
  static AppendFile open(const std::filesystem::path& path);

  /// Creates the file; nullopt if there is one already.
  static std::optional<AppendFile> create(const std::filesystem::path& path);

  /// Throws Error(data) with the file's name if not all could be written; the file then ends where
  /// it ended before.
  void append(std::string_view bytes);

  void close() noexcept;
  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Replaces the file at once: a reader finds the old content or the new, never a part.
void write_whole_file(const std::filesystem::path& path, std::string_view content);

/// Throws Error(data) that says what could not be done with which file, and the system's reason.
[[noreturn]] void fail_on_file(std::string_view what, const std::filesystem::path& path);

/// Creates a folder and those above it; Error(data) if that is impossible.
void create_folders(const std::filesystem::path& path);

}  // namespace accel::detail
