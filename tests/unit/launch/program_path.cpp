// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Finding the program, and what is said where there is none.
#include <accel/launch/program_path.hpp>

#include "launched_job.hpp"

#include "support/scratch_folder.hpp"

#include <catch2/matchers/catch_matchers_string.hpp>

#include <filesystem>
#include <fstream>

using accel::detail::find_program;
using Catch::Matchers::ContainsSubstring;
using namespace accel_test;

namespace {

void write(const std::filesystem::path& path, bool executable) {
  std::ofstream(path) << "#!/bin/sh\n";
  std::filesystem::permissions(
      path, executable ? std::filesystem::perms::owner_all
                       : std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

/// Comes back to the folder where it was.
class InFolder {
 public:
  explicit InFolder(const std::filesystem::path& path) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  ~InFolder() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

}  // namespace

TEST_CASE("a name without a slash is looked up in PATH, in order, past what cannot be executed") {
  const ScratchFolder folder;
  for (const char* name : {"a", "b", "c"}) std::filesystem::create_directory(folder / name);
  std::filesystem::create_directory(folder / "a" / "train");
  write(folder / "b" / "train", false);
  write(folder / "c" / "train", true);
  const auto path =
      (folder / "a").string() + ":" + (folder / "b").string() + ":" + (folder / "c").string();
  const auto found = find_program("train", path);
  CHECK(found.path == (folder / "c" / "train").string());
  CHECK(found.fault.empty());
  // An empty part of PATH is the current folder.
  const InFolder inside(folder / "c");
  CHECK(std::filesystem::equivalent(find_program("train", "/nonexistent:").path,
                                    folder / "c" / "train"));
}

TEST_CASE("programs that cannot be run: a sentence with the cure, and the shell's exit code") {
  const ScratchFolder folder;
  const InFolder inside(folder.path());
  write("here", true);
  write("plain", false);
  write("train.py", false);
  const auto none = find_program("nosuchprogram", "/usr/bin");
  CHECK(none.exit_code == 127);
  CHECK_THAT(none.fault, ContainsSubstring("'nosuchprogram'") && ContainsSubstring("PATH"));
  const auto here = find_program("here", "/usr/bin");
  CHECK(here.exit_code == 127);
  CHECK_THAT(here.fault, ContainsSubstring("type ./here"));
  const auto missing = find_program("./build/train", "/usr/bin");
  CHECK(missing.exit_code == 127);
  CHECK_THAT(missing.fault, ContainsSubstring("'./build/train'") && ContainsSubstring("built"));
  const auto plain = find_program("./plain", "/usr/bin");
  CHECK(plain.exit_code == 126);
  CHECK_THAT(plain.fault, ContainsSubstring("'./plain'") && ContainsSubstring("chmod +x ./plain"));
  const auto script = find_program("train.py", "/usr/bin");
  CHECK(script.exit_code == 126);
  CHECK_THAT(script.fault, ContainsSubstring("python3 ./train.py"));
  const auto directory = find_program("./", "/usr/bin");
  CHECK(directory.exit_code == 126);
  CHECK_THAT(directory.fault, ContainsSubstring("folder"));
  CHECK(find_program("", "/usr/bin").exit_code == 127);
}

TEST_CASE("accel-launch says it once, whatever the number of ranks") {
  LaunchedJob job({"--num_processes", "4", "/no/such/program"});
  const auto finished = job.finish();
  CHECK(finished.status == 127);
  REQUIRE(finished.err_lines().size() == 1);
  CHECK_THAT(finished.err, ContainsSubstring("'/no/such/program'"));
}
