// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Files as checkpoints need them: a file that appears under its name only when it is whole and on
// the disk, and reads at an offset that end in an error instead of a signal. Knows nothing of
// formats; safetensors and state folders are written through it. Needs no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace accel {

/// A file under construction. It is written beside its target as `.<name>.tmp-<process>-<n>` and
/// takes the target's name in `commit`, so that a reader sees the old content or the new, never a
/// part. Not committed: removed.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path target);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(const void* bytes, std::size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }

  /// Forces the bytes to the disk and replaces the target. The folder's own entry is made durable
  /// by `sync_folder`.
  void commit();

  /// The first half of `commit`: forces the bytes to the disk. For files that are to appear
  /// together, which flush all before the first of them commits.
  void flush();

  [[nodiscard]] const std::filesystem::path& target() const noexcept { return target_; }

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

/// A regular file opened for reading at offsets.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Fills `bytes`; throws if the file ends before `offset + size`.
  // Not a memory map: a map of a file that shrinks, or of a disk that fails, ends the process with
  // SIGBUS, and its pages count as resident beside the tensors that they are copied to.
  void read(std::uint64_t offset, void* bytes, std::size_t size) const;

 private:
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
};

/// The whole content of a (small) file.
std::string read_text(const std::filesystem::path& path);

/// Replaces a (small) file at once and durably.
void write_text(const std::filesystem::path& path, std::string_view text);

/// Makes the names in a folder durable: what was created, renamed or removed there.
void sync_folder(const std::filesystem::path& folder);

}  // namespace accel
