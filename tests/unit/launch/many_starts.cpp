// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// launch() in the test's own process, as a program of one's own calls it: it leaves nothing behind,
// neither processes nor descriptors nor signal settings.
#include "launched_job.hpp"

#include "support/scratch_folder.hpp"

#include <accel/detail/error.hpp>
#include <accel/launch/launch.hpp>

#include <filesystem>
#include <fstream>
#include <set>

using namespace accel_test;

namespace {

std::set<std::string> open_descriptors() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    names.insert(entry.path().filename());
  return names;
}

accel::LaunchJob job_of(int processes, const std::string& script) {
  accel::LaunchJob job;
  job.num_processes = processes;
  job.command = {"sh", "-c", script};
  job.quiet = true;
  return job;
}

}  // namespace

TEST_CASE("50 starts in a row leak no descriptor, no process, no signal setting") {
  const auto before = open_descriptors();
  sigset_t mask_before;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask_before);
  int subreaper_before = -1;
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  for (int i = 0; i < 50; ++i) {
    CAPTURE(i);
    // Good and bad ends in turn.
    REQUIRE(accel::launch(job_of(2, i % 2 == 0 ? "exit 0" : "exit 4")) == (i % 2 == 0 ? 0 : 4));
    REQUIRE(::waitpid(-1, nullptr, WNOHANG) < 0);
  }
  CHECK(open_descriptors() == before);
  sigset_t mask_after;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask_after);
  for (int number = 1; number < 65; ++number)
    CHECK(sigismember(&mask_after, number) == sigismember(&mask_before, number));
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper_before);
  CHECK(subreaper_before == 0);
  struct sigaction child{};
  ::sigaction(SIGCHLD, nullptr, &child);
  CHECK(child.sa_handler == SIG_DFL);
}

TEST_CASE("ranks inherit stdin, stdout, stderr, what the caller had open for them, and rank 0 the "
          "socket; nothing else") {
  const ScratchFolder folder;
  auto job = job_of(3, "ls /proc/$$/fd; exit 0");
  job.log_dir = folder.path();
  const auto inheritable = [] {
    int count = 0;
    for (const auto& name : open_descriptors()) {
      const int flags = ::fcntl(std::stoi(name), F_GETFD);
      if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ++count;
    }
    return count;
  }();
  REQUIRE(accel::launch(job) == 0);
  for (int rank = 0; rank < 3; ++rank) {
    std::ifstream file(folder / std::to_string(rank) / "stdout.log");
    int count = 0;
    for (std::string word; file >> word;) ++count;
    CAPTURE(rank);
    CHECK(count == inheritable + (rank == 0 ? 1 : 0));
  }
}

TEST_CASE("8 ranks, each one once") {
  const ScratchFolder folder;
  auto job = job_of(8, "echo $RANK > " + folder.path().string() + "/$RANK.$LOCAL_RANK.$WORLD_SIZE");
  CHECK(accel::launch(job) == 0);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.insert(entry.path().filename());
  CHECK(names == std::set<std::string>{"0.0.8", "1.1.8", "2.2.8", "3.3.8", "4.4.8", "5.5.8",
                                       "6.6.8", "7.7.8"});
}

TEST_CASE("jobs that make no sense are refused before anything starts") {
  auto job = job_of(1, "exit 0");
  job.command.clear();
  CHECK_THROWS_AS(accel::launch(job), accel::Error);
  job = job_of(0, "exit 0");
  CHECK_THROWS_AS(accel::launch(job), accel::Error);
  job = job_of(1, "exit 0");
  job.num_cpu_threads_per_process = 0;
  CHECK_THROWS_AS(accel::launch(job), accel::Error);
  job = job_of(1, "exit 0");
  job.grace_period = std::chrono::milliseconds(-1);
  CHECK_THROWS_AS(accel::launch(job), accel::Error);
  job = job_of(1, "exit 0");
  job.main_process_port = 70000;
  CHECK_THROWS_AS(accel::launch(job), accel::Error);
}
