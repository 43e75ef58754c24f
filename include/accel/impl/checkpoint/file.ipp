// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/file.hpp.
#include <accel/checkpoint/file.hpp>

#include <accel/detail/error.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace accel {
namespace detail {
namespace {

[[noreturn]] void fail_on_file(const char* what, const std::filesystem::path& path, int error) {
  fail(ErrorCategory::checkpoint, "cannot {} {}: {}", what, path.string(),
       std::system_category().message(error));
}

// One write or read call moves at most 0x7ffff000 bytes on Linux; a smaller piece is as fast.
constexpr std::size_t largest_piece = std::size_t{1} << 30;

}  // namespace
}  // namespace detail

OutputFile::OutputFile(std::filesystem::path target) : target_(std::move(target)) {
  static std::atomic<unsigned> counter{0};
  if (!target_.has_filename()) {
    detail::fail(ErrorCategory::checkpoint, "{} names a folder where a file is to be written",
                 target_.string());
  }
  do {
    temporary_ = target_.parent_path() / fmt::format(".{}.tmp-{}-{}", target_.filename().string(),
                                                     ::getpid(), counter.fetch_add(1));
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    detail::fail_on_file("create", target_, errno);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void OutputFile::write(const void* bytes, std::size_t size) {
  auto* position = static_cast<const std::byte*>(bytes);
  while (size > 0) {
    const auto written = ::write(descriptor_, position, std::min(size, detail::largest_piece));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      detail::fail_on_file("write", target_, errno);
    }
    position += written;
    size -= static_cast<std::size_t>(written);
  }
}

void OutputFile::flush() {
  if (descriptor_ < 0) {
    return;
  }
  if (::fsync(descriptor_) != 0) {
    detail::fail_on_file("write", target_, errno);
  }
  // Some file systems (quota, network) report a failed write only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    detail::fail_on_file("close", target_, errno);
  }
}

void OutputFile::commit() {
  flush();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    detail::fail_on_file("replace", target_, errno);
  }
  temporary_.clear();
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a named pipe waits for its writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) {
    detail::fail_on_file("open", path_, errno);
  }
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    detail::fail(ErrorCategory::checkpoint, "{} is not a regular file", path_.string());
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::uint64_t offset, void* bytes, std::size_t size) const {
  auto* position = static_cast<std::byte*>(bytes);
  while (size > 0) {
    const auto got = ::pread(descriptor_, position, std::min(size, detail::largest_piece),
                             static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      detail::fail_on_file("read", path_, errno);
    }
    if (got == 0) {
      detail::fail(ErrorCategory::checkpoint, "{} is truncated: it ends at byte {}", path_.string(),
                   offset);
    }
    position += got;
    size -= static_cast<std::size_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
}

std::string read_text(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const auto& path = folder.empty() ? std::filesystem::path(".") : folder;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    detail::fail_on_file("open", path, errno);
  }
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Network file systems may have no such call for folders; they make names durable on their own.
  if (result != 0 && error != EINVAL && error != ENOTSUP) {
    detail::fail_on_file("write", path, error);
  }
}

}  // namespace accel
