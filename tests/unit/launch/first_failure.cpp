// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How a job ends by itself: exit codes, and who is named when ranks fail.
#include "launched_job.hpp"

#include "support/scratch_folder.hpp"

#include <catch2/matchers/catch_matchers_string.hpp>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstddef>
#include <fstream>

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using namespace accel_test;

namespace {

void await_zombie(pid_t pid) {
  const auto start = std::chrono::steady_clock::now();
  while (seconds_since(start) < patience.count()) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    std::getline(file, line);
    if (line.find(") Z ") != std::string::npos) return;
    ::usleep(1000);
  }
  FAIL("process " << pid << " does not end");
}

/// The kernel has no pidfd_open for this process, as before Linux 5.3 and in some containers.
void forbid_pidfd_open() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(code)), code};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) ::_exit(98);
}

}  // namespace

TEST_CASE("a job whose ranks all end well: exit code 0, and not a word") {
  LaunchedJob job(shell({"--num_processes", "4"}, "echo rank $RANK"));
  CHECK(job.lines(4) == std::vector<std::string>{"rank 0", "rank 1", "rank 2", "rank 3"});
  const auto finished = job.finish();
  CHECK(finished.status == 0);
  CHECK(finished.err.empty());
}

TEST_CASE("the exit code of the first rank that fails is the job's, and its name comes first") {
  // The others would run for ever.
  LaunchedJob job(shell({"--num_processes", "3"}, "[ $RANK = 1 ] && exit 7; exec sleep 1000"));
  const auto finished = job.finish();
  CHECK(finished.status == 7);
  REQUIRE(finished.err_lines().size() == 1);
  CHECK(finished.err_lines()[0] ==
        "accel-launch: rank 1 of 3 failed first: exit code 7; stopping ranks 0 and 2");
}

TEST_CASE("a rank that a signal kills: 128 plus its number") {
  LaunchedJob job(shell({"--num_processes", "2"},
                        "ulimit -c 0; [ $RANK = 1 ] && kill -SEGV $$; exec sleep 1000"));
  const auto finished = job.finish();
  CHECK(finished.status == 128 + SIGSEGV);
  CHECK_THAT(finished.err, StartsWith("accel-launch: rank 1 of 2 failed first: killed by SIGSEGV"));
}

TEST_CASE("peers that fail while they are being stopped are named after the first") {
  // Rank 0 turns the SIGTERM into a failure of its own, as a program does whose handler throws.
  const ScratchFolder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  LaunchedJob job(shell({"--num_processes", "2"},
                        "if [ $RANK = 0 ]; then exec 2>/dev/null; trap 'exit 9' TERM; echo go > "
                        "$FIFO; while :; do sleep 1000 & wait $!; done; fi; "
                        "read line < $FIFO; exit 3"),
                  [&] { ::setenv("FIFO", (folder / "fifo").c_str(), 1); });
  const auto finished = job.finish();
  CHECK(finished.status == 3);
  REQUIRE(finished.err_lines().size() == 2);
  CHECK_THAT(finished.err_lines()[0],
             StartsWith("accel-launch: rank 1 of 2 failed first: exit code 3"));
  CHECK(finished.err_lines()[1] == "accel-launch: after it, rank 0: exit code 9");
}

TEST_CASE("the first failure is the first in time, also if the launcher was not looking") {
  // Rank 1 stops the keeper of the job and fails; then rank 0 fails, whose process is the older
  // one. Only then the keeper runs again and finds both. (The pauses: the keeper has to have begun to
  // wait for both, and the system shows a zombie a moment before it tells those that wait.)
  const ScratchFolder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  LaunchedJob job(
      shell({"--num_processes", "2"},
            "if [ $RANK = 1 ]; then sleep 0.5; kill -STOP $PPID; echo $$ > $FIFO; exit 3; fi; "
            "read peer < $FIFO; until grep -q ') Z ' /proc/$peer/stat; do :; done; "
            "sleep 0.1; echo $$ $PPID; exit 4"),
      [&] { ::setenv("FIFO", (folder / "fifo").c_str(), 1); });
  const auto pids = job.line();
  const auto space = pids.find(' ');
  await_zombie(std::stoi(pids.substr(0, space)));
  REQUIRE(::kill(std::stoi(pids.substr(space + 1)), SIGCONT) == 0);
  const auto finished = job.finish();
  CHECK(finished.status == 3);
  CHECK_THAT(finished.err, StartsWith("accel-launch: rank 1 of 2 failed first: exit code 3"));
}

TEST_CASE("a kernel without pidfd_open") {
  LaunchedJob good(shell({"--num_processes", "3"}, "exit 0"), forbid_pidfd_open);
  CHECK(good.finish().status == 0);
  LaunchedJob bad(shell({"--num_processes", "3"}, "[ $RANK = 2 ] && exit 7; exec sleep 1000"),
                  forbid_pidfd_open);
  const auto finished = bad.finish();
  CHECK(finished.status == 7);
  CHECK_THAT(finished.err, StartsWith("accel-launch: rank 2 of 3 failed first: exit code 7"));
}

TEST_CASE("--quiet says nothing of ranks that fail") {
  LaunchedJob job(shell({"--num_processes", "2", "--quiet"}, "exit 5"));
  const auto finished = job.finish();
  CHECK(finished.status == 5);
  CHECK(finished.err.empty());
}

TEST_CASE("a program that is found and yet cannot be executed") {
  const ScratchFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    return (folder / name).string();
  };
  LaunchedJob binary({"--num_processes", "2",
                      write("binary", "\x7f"
                                      "ELF, or nearly")});
  auto finished = binary.finish();
  CHECK(finished.status == 126);
  CHECK_THAT(finished.err, ContainsSubstring("binary' cannot be executed") &&
                               ContainsSubstring("no program for this machine"));
  LaunchedJob script({"--num_processes", "2", write("script", "#!/no/such/interpreter\n")});
  finished = script.finish();
  CHECK(finished.status == 127);
  CHECK_THAT(finished.err,
             ContainsSubstring("script' cannot be executed") && ContainsSubstring("interpreter"));
}

TEST_CASE("more processes than the system gives: what was started is stopped") {
  if (::getuid() != 0) SKIP("needs to change its user, so that no other process counts");
  LaunchedJob job(shell({"--num_processes", "50"}, "exec sleep 1000"), [] {
    const rlimit few{20, 20};
    ::setrlimit(RLIMIT_NPROC, &few);
    if (::setuid(54321) != 0) ::_exit(97);
  });
  const auto finished = job.finish();
  if (finished.status == 99) SKIP("that user may not read the build folder");
  CHECK(finished.status == 1);
  CHECK_THAT(finished.err, ContainsSubstring("of 50 was not started") &&
                               ContainsSubstring("--num_processes") &&
                               ContainsSubstring("ulimit -u"));
}
