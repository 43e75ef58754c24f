// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Standard input and output of ranks.
#include "launched_job.hpp"

#include "support/scratch_folder.hpp"

#include <catch2/matchers/catch_matchers_string.hpp>

#include <fstream>
#include <iterator>

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using namespace accel_test;

namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("stdout and stderr of ranks are the launcher's") {
  LaunchedJob job(shell({"--num_processes", "2"}, "echo out $RANK; echo err $RANK >&2"));
  const auto finished = job.finish();
  CHECK(finished.status == 0);
  CHECK_THAT(finished.out, ContainsSubstring("out 0\n") && ContainsSubstring("out 1\n") &&
                               !ContainsSubstring("err"));
  CHECK_THAT(finished.err, ContainsSubstring("err 0\n") && ContainsSubstring("err 1\n") &&
                               !ContainsSubstring("out"));
}

TEST_CASE("rank 0 has the launcher's stdin, the others none") {
  LaunchedJob job(
      shell({"--num_processes", "3"},
            "if read line; then echo $RANK got $line; else echo $RANK got nothing; fi"));
  job.write("a word\n");
  CHECK(job.lines(3) == std::vector<std::string>{"0 got a word", "1 got nothing", "2 got nothing"});
  CHECK(job.finish().status == 0);
}

TEST_CASE("--log_dir: a folder a rank, and nothing on the launcher's output but its own word") {
  const ScratchFolder folder;
  const auto logs = folder / "a" / "b";
  const auto run = [&](const std::string& script) {
    LaunchedJob job(shell({"--num_processes", "2", "--log_dir", logs.string()}, script));
    return job.finish();
  };
  auto finished = run("echo out $RANK; echo err $RANK >&2");
  CHECK(finished.status == 0);
  CHECK(finished.out.empty());
  CHECK(finished.err.empty());
  CHECK(content(logs / "0" / "stdout.log") == "out 0\n");
  CHECK(content(logs / "0" / "stderr.log") == "err 0\n");
  CHECK(content(logs / "1" / "stdout.log") == "out 1\n");
  // A second run does not destroy the first one's.
  finished = run("echo again; [ $RANK = 0 ] || exit 3");
  CHECK(content(logs / "1" / "stdout.log") == "out 1\nagain\n");
  CHECK(finished.status == 3);
  CHECK_THAT(finished.err,
             ContainsSubstring("exit code 3 (see " + (logs / "1" / "stderr.log").string() + ")"));
}

TEST_CASE("--log_dir where no folder can be made") {
  const ScratchFolder folder;
  std::ofstream(folder / "file") << "in the way";
  LaunchedJob job(
      shell({"--num_processes", "2", "--log_dir", (folder / "file").string()}, "echo started"));
  const auto finished = job.finish();
  CHECK(finished.status == 1);
  CHECK(finished.out.empty());
  CHECK_THAT(finished.err, ContainsSubstring("--log_dir") && ContainsSubstring("file/0"));
}

TEST_CASE("a launcher that was started without stdin, stdout and stderr") {
  // Were the descriptors left free, the port's socket would become rank 0's stdin.
  const ScratchFolder folder;
  const auto marker = (folder / "marker").string();
  LaunchedJob job(
      shell({"--num_processes", "2"}, "[ $RANK = 0 ] || exit 0; { for fd in 0 2 $ACCEL_STORE_FD; "
                                      "do readlink /proc/$$/fd/$fd; done; } > " +
                                          marker),
      [] {
        for (int fd = 0; fd < 3; ++fd) ::close(fd);
      });
  CHECK(job.finish().status == 0);
  CHECK_THAT(content(marker), StartsWith("/dev/null\n/dev/null\nsocket:["));
}
