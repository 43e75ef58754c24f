// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/append_file.hpp>
#include <accel/detail/error.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace accel::detail {
namespace {

// The number of bytes written: less than all of them only on an error, which is left in errno.
std::size_t write_all(int descriptor, std::string_view bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(descriptor, bytes.data() + written, bytes.size() - written);
    if (n > 0)
      written += static_cast<std::size_t>(n);
    else if (n == 0 || errno != EINTR)
      break;
  }
  return written;
}

}  // namespace

void fail_on_file(std::string_view what, const std::filesystem::path& path) {
  const int reason = errno;
  fail(ErrorCategory::data, "cannot {} {}: {}", what, path.string(),
       std::generic_category().message(reason));
}

void create_folders(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    fail(ErrorCategory::data, "cannot create the folder {}: {}", path.string(), error.message());
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

AppendFile::~AppendFile() { close(); }

AppendFile AppendFile::open(const std::filesystem::path& path) {
  if (path.has_parent_path()) create_folders(path.parent_path());
  AppendFile file;
  file.descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file.descriptor_ < 0) fail_on_file("open", path);
  file.path_ = path;
  return file;
}

std::optional<AppendFile> AppendFile::create(const std::filesystem::path& path) {
  if (path.has_parent_path()) create_folders(path.parent_path());
  AppendFile file;
  file.descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file.descriptor_ < 0 && errno == EEXIST) return std::nullopt;
  if (file.descriptor_ < 0) fail_on_file("create", path);
  file.path_ = path;
  return file;
}

void AppendFile::append(std::string_view bytes) {
  const std::size_t written = write_all(descriptor_, bytes);
  if (written == bytes.size()) return;
  // Half a record would make the rest of the file unreadable: take it back.
  const int reason = errno;
  struct stat status{};
  if (written > 0 && ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
    [[maybe_unused]] const int taken_back =
        ::ftruncate(descriptor_, status.st_size - static_cast<off_t>(written));
  }
  errno = reason;
  fail_on_file("write to", path_);
}

void AppendFile::close() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

void write_whole_file(const std::filesystem::path& path, std::string_view content) {
  if (path.has_parent_path()) create_folders(path.parent_path());
  // In the same folder, since a rename does not cross file systems; with the process in its name,
  // since ranks may share it.
  const std::string beside = path.string() + ".tmp" + std::to_string(::getpid());
  const int descriptor = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_on_file("create", beside);
  const bool complete = write_all(descriptor, content) == content.size();
  const int reason = errno;
  ::close(descriptor);
  if (complete && ::rename(beside.c_str(), path.c_str()) == 0) return;
  if (!complete) errno = reason;
  const int why = errno;
  ::unlink(beside.c_str());
  errno = why;
  fail_on_file("write", path);
}

}  // namespace accel::detail
