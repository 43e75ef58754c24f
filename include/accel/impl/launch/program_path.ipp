// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/program_path.hpp.

#include <accel/launch/program_path.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace accel::detail {

namespace fs = std::filesystem;

namespace {

constexpr int not_found = 127;
constexpr int not_executable = 126;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_executable(const fs::path& path) { return ::access(path.c_str(), X_OK) == 0; }

/// What to type instead, if the name itself says so.
std::string advice(const std::string& name) {
  if (name.ends_with(".py"))
    return fmt::format("; to run a script, name its interpreter: python3 {}", name);
  return fmt::format("; allow it with chmod +x {}", name);
}

ProgramPath in_place(const std::string& name) {
  std::error_code ignored;
  if (fs::is_directory(name, ignored))
    return {{}, fmt::format("'{}' is a folder, not a program", name), not_executable};
  if (!is_file(name))
    return {
        {},
        fmt::format("there is no program '{}'; has it been built, and is the path right?", name),
        not_found};
  if (!is_executable(name))
    return {{}, fmt::format("'{}' may not be executed{}", name, advice(name)), not_executable};
  return {name, {}, 0};
}

}  // namespace

ProgramPath find_program(const std::string& name, const std::string& search_path) {
  if (name.empty()) return {{}, "the name of the program is empty", not_found};
  if (name.find('/') != std::string::npos) return in_place(name);

  for (std::string_view rest = search_path;;) {
    const auto colon = std::min(rest.find(':'), rest.size());
    const std::string folder(rest.substr(0, colon));
    const auto candidate = (folder.empty() ? fs::path(".") : fs::path(folder)) / name;
    if (is_file(candidate) && is_executable(candidate)) return {candidate.string(), {}, 0};
    if (colon == rest.size()) break;
    rest.remove_prefix(colon + 1);
  }
  // Not in PATH: the commonest slip is a program of the current folder without the "./".
  if (is_file(name) && is_executable(name))
    return {{},
            fmt::format("there is no program '{}' in PATH; for the one in this folder, type ./{}",
                        name, name),
            not_found};
  if (is_file(name))
    return {
        {},
        fmt::format(
            "there is no program '{}' in PATH, and the file in this folder may not be executed{}",
            name, advice("./" + name)),
        not_executable};
  return {{}, fmt::format("there is no program '{}' in PATH; is the name right?", name), not_found};
}

std::string exec_fault(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
      return fmt::format(
          "'{}' cannot be executed: it is gone, or the interpreter that it names is missing", path);
    case ENOEXEC:
      return fmt::format("'{}' cannot be executed: it is no program for this machine, nor a script "
                         "that starts with #!",
                         path);
    default: return fmt::format("'{}' cannot be executed: {}", path, std::strerror(error));
  }
}

int exec_exit_code(int error) { return error == ENOENT ? not_found : not_executable; }

}  // namespace accel::detail
