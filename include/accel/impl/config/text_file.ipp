// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/text_file.hpp.
#include <accel/config/text_file.hpp>
#include <accel/detail/error.hpp>

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <system_error>

namespace accel::detail {
namespace {

constexpr std::size_t largest_file = 1 << 20;

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    fail(ErrorCategory::config, "{}: this is a folder; name the configuration file in it",
         path.string());
  }
  // Not a pipe, whose other end may never write.
  if (std::filesystem::exists(path, code) && !std::filesystem::is_regular_file(path, code) &&
      !std::filesystem::is_character_file(path, code)) {
    fail(ErrorCategory::config, "{}: this is no regular file; name a configuration file",
         path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail(ErrorCategory::config, "{}: {}; write one with `accel-config default --config_file {}`",
         path.string(), std::strerror(errno), path.string());
  }
  std::string text(largest_file + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > largest_file) {
    fail(ErrorCategory::config, "{}: larger than 1 MiB, so it is no configuration", path.string());
  }
  return text;
}

void replace_text_file(const std::filesystem::path& path, std::string_view text) {
  static std::atomic<int> counter = 0;
  std::error_code code;
  const auto target =
      std::filesystem::is_symlink(path, code) ? std::filesystem::weakly_canonical(path) : path;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), code);
  const std::filesystem::path fresh =
      fmt::format("{}.{}.{}", target.string(), ::getpid(), counter.fetch_add(1));
  errno = 0;
  std::ofstream file(fresh, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  int problem = file ? 0 : errno;
  if (problem == 0 && file) {
    std::filesystem::rename(fresh, target, code);
    problem = code.value();
  }
  if (problem != 0 || !file) {
    std::filesystem::remove(fresh, code);
    fail(ErrorCategory::config, "{}: this file cannot be written: {}", path.string(),
         std::strerror(problem));
  }
}

}  // namespace accel::detail
