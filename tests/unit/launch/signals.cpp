// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How a job ends from outside, and that nothing of it is left behind, whoever is killed.
#include "launched_job.hpp"

#include "support/scratch_folder.hpp"

#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <sys/stat.h>

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using namespace accel_test;

namespace {

/// Says "ready", and on SIGTERM or SIGINT says so and ends well. (What the shell itself says of its
/// child is not of interest.)
const std::string polite = "exec 2>/dev/null; trap 'echo rank $RANK got TERM; exit 0' TERM; trap "
                           "'echo rank $RANK got INT; exit 0' INT; echo ready; "
                           "while :; do sleep 1000 & wait $!; done";

/// Ignores what can be ignored, and so does its child, which inherits that.
const std::string stubborn = "trap '' TERM INT HUP; echo ready; sleep 1000; sleep 1000";

/// A rank with a child, one that has left the rank's session, and one whose parent is gone; all
/// ignore SIGTERM.
const std::string start_descendants =
    "trap '' TERM INT HUP; sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; ";
const std::string with_descendants = start_descendants + "echo ready; sleep 1000; sleep 1000";

const std::vector<std::string> all_ready{"ready", "ready"};

}  // namespace

TEST_CASE("B28 SIGTERM to the launcher reaches every rank, and the launcher returns 143") {
  LaunchedJob job(shell({"--num_processes", "2"}, polite));
  REQUIRE(job.lines(2) == all_ready);
  job.send(SIGTERM);
  CHECK(job.lines(2) == std::vector<std::string>{"rank 0 got TERM", "rank 1 got TERM"});
  const auto finished = job.finish();
  CHECK(finished.status == 143);
  REQUIRE(finished.err_lines().size() == 1);
  CHECK(finished.err_lines()[0] ==
        "accel-launch: SIGTERM: stopping ranks 0 and 1 (killed after 30 s)");
}

TEST_CASE("B28 a rank that ignores SIGTERM is killed after the grace period") {
  LaunchedJob job(shell({"--num_processes", "2", "--grace_period", "1"}, stubborn));
  REQUIRE(job.lines(2) == all_ready);
  const auto start = std::chrono::steady_clock::now();
  job.send(SIGTERM);
  const auto finished = job.finish();
  CHECK(finished.status == 143);
  CHECK(seconds_since(start) >= 1.0);
  CHECK(seconds_since(start) < 5.0);
  CHECK_THAT(
      finished.err,
      ContainsSubstring("ranks 0 and 1 did not end within the grace period and were killed"));
}

TEST_CASE("B28 SIGINT: 130, and one message, not one per rank") {
  LaunchedJob job(shell({"--num_processes", "4"}, polite));
  REQUIRE(job.lines(4) == std::vector<std::string>(4, "ready"));
  // As Ctrl-C does: to the whole group of the terminal's foreground job.
  REQUIRE(::kill(-job.pid(), SIGINT) == 0);
  CHECK(job.lines(4) == std::vector<std::string>{"rank 0 got INT", "rank 1 got INT",
                                                 "rank 2 got INT", "rank 3 got INT"});
  const auto finished = job.finish();
  CHECK(finished.status == 130);
  CHECK(finished.out.empty());  // no rank got it twice
  REQUIRE(finished.err_lines().size() == 1);
  CHECK_THAT(finished.err, StartsWith("accel-launch: SIGINT: stopping ranks 0, 1, 2 and 3"));
}

TEST_CASE("B28 SIGINT kills ranks that have no handler, with the same one message") {
  LaunchedJob job(shell({"--num_processes", "3"}, "echo ready; exec sleep 1000"));
  REQUIRE(job.lines(3) == std::vector<std::string>(3, "ready"));
  job.send(SIGINT);
  const auto finished = job.finish();
  CHECK(finished.status == 130);
  CHECK(finished.err_lines().size() == 1);
}

TEST_CASE(
    "B28 the launcher killed with SIGKILL: ranks and all that they started are gone within 5 s") {
  const auto script = GENERATE(polite, stubborn, with_descendants);
  CAPTURE(script);
  LaunchedJob job(shell({"--num_processes", "2"}, script));
  REQUIRE(job.lines(2) == all_ready);
  job.send(SIGKILL);
  CHECK(job.wait().status == -SIGKILL);
  CHECK(await_no_children(patience) < 5.0);
}

TEST_CASE(
    "B28 the keeper of the ranks killed with SIGKILL: the launcher says so, and nothing is left") {
  LaunchedJob job(shell({"--num_processes", "2"}, "echo $PPID; " + with_descendants));
  auto lines = job.lines(4);
  REQUIRE(lines[0] == lines[1]);
  REQUIRE(::kill(std::stoi(lines[0]), SIGKILL) == 0);
  const auto finished = job.finish();
  CHECK(finished.status == 128 + SIGKILL);
  CHECK_THAT(finished.err, ContainsSubstring("killed by SIGKILL"));
}

TEST_CASE("B28 launcher and keeper killed with SIGKILL at once: the ranks are gone") {
  LaunchedJob job(
      shell({"--num_processes", "2"}, "trap '' TERM INT HUP; echo $PPID; exec sleep 1000"));
  const auto keeper = job.lines(2)[0];
  REQUIRE(::kill(std::stoi(keeper), SIGSTOP) == 0);  // so that it cannot clean up
  job.send(SIGKILL);
  REQUIRE(::kill(std::stoi(keeper), SIGKILL) == 0);
  job.wait();
  CHECK(await_no_children(patience) < 5.0);
}

TEST_CASE("grandchildren end with the job: after a failure, after SIGTERM, after a good end") {
  SECTION("after a failure") {
    const ScratchFolder folder;
    REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
    LaunchedJob job(shell({"--num_processes", "2", "--grace_period", "0.5"},
                          "if [ $RANK = 1 ]; then read go < $FIFO; exit 6; fi; " +
                              start_descendants + "echo > $FIFO; sleep 1000; sleep 1000"),
                    [&] { ::setenv("FIFO", (folder / "fifo").c_str(), 1); });
    CHECK(job.finish().status == 6);
  }
  SECTION("after a failure of a rank that has them itself") {
    LaunchedJob job(
        shell({"--num_processes", "2", "--grace_period", "0.5"},
              "trap '' TERM; sleep 1000 & setsid sleep 1000 & [ $RANK = 1 ] && exit 6; wait"));
    CHECK(job.finish().status == 6);
  }
  SECTION("after SIGTERM") {
    LaunchedJob job(shell({"--num_processes", "2", "--grace_period", "0.5"}, with_descendants));
    REQUIRE(job.lines(2) == all_ready);
    job.send(SIGTERM);
    CHECK(job.finish().status == 143);
  }
  SECTION("a rank that answers SIGTERM by starting one more") {
    LaunchedJob job(
        shell({"--num_processes", "2"},
              "trap 'sleep 1000 & exit 0' TERM; echo ready; while :; do sleep 0.01; done"));
    REQUIRE(job.lines(2) == all_ready);
    job.send(SIGTERM);
    const auto finished = job.finish();
    CHECK(finished.status == 143);
    CHECK(finished.seconds < 20.0);  // SIGTERM was enough
  }
  SECTION("after a good end") {
    LaunchedJob job(shell({"--num_processes", "2"}, "sleep 1000 & (setsid sleep 1000 &) ; exit 0"));
    const auto finished = job.finish();
    CHECK(finished.status == 0);
    CHECK(finished.seconds < 20.0);  // SIGTERM was enough
    CHECK_THAT(finished.err, ContainsSubstring("processes that they started are running"));
  }
}

TEST_CASE("each rank leads a session and a group of its own") {
  // /proc/<pid>/stat: pid (name) state parent group session
  LaunchedJob job(shell({"--num_processes", "2"},
                        "read pid name state parent group session rest < /proc/$$/stat; "
                        "[ $pid = $group ] && [ $pid = $session ] && echo leads"));
  CHECK(job.lines(2) == std::vector<std::string>{"leads", "leads"});
  CHECK(job.finish().status == 0);
}

TEST_CASE("the child of a rank that ended well goes on while other ranks run") {
  const ScratchFolder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  LaunchedJob job(shell({"--num_processes", "2"}, "if [ $RANK = 1 ]; then (read word < $FIFO; echo "
                                                  "child got $word; echo > $FIFO) & exit 0; fi; "
                                                  "read go; echo hello > $FIFO; read done < $FIFO"),
                  [&] { ::setenv("FIFO", (folder / "fifo").c_str(), 1); });
  job.write("go\n");
  CHECK(job.line() == "child got hello");
  CHECK(job.finish().status == 0);
}

TEST_CASE("a second SIGINT kills at once") {
  LaunchedJob job(shell({"--num_processes", "2", "--grace_period", "600"}, stubborn));
  REQUIRE(job.lines(2) == all_ready);
  job.send(SIGINT);
  ::usleep(700'000);  // a person's second Ctrl-C; one that comes at once is taken for the first
  job.send(SIGINT);
  const auto finished = job.finish();
  CHECK(finished.status == 130);
  CHECK(finished.seconds < 20.0);
}

TEST_CASE("the same SIGINT sent twice is one: ranks keep their grace period") {
  LaunchedJob job(shell({"--num_processes", "2", "--grace_period", "1"}, stubborn));
  REQUIRE(job.lines(2) == all_ready);
  const auto start = std::chrono::steady_clock::now();
  job.send(SIGINT);
  ::usleep(20'000);
  job.send(SIGINT);
  CHECK(job.finish().status == 130);
  CHECK(seconds_since(start) >= 1.0);
}

TEST_CASE("SIGHUP ends the job, unless the launcher was started with nohup") {
  {
    LaunchedJob job(shell({"--num_processes", "2"}, "echo ready; exec sleep 1000"));
    REQUIRE(job.lines(2) == all_ready);
    job.send(SIGHUP);
    CHECK(job.finish().status == 129);
  }
  LaunchedJob job(shell({"--num_processes", "1"}, "echo ready; read line; echo $line"),
                  [] { ::signal(SIGHUP, SIG_IGN); });
  REQUIRE(job.line() == "ready");
  job.send(SIGHUP);
  job.write("on\n");
  CHECK(job.line() == "on");
  CHECK(job.finish().status == 0);
}

TEST_CASE("a launcher that was started with signals ignored or blocked ends its job all the same") {
  LaunchedJob job(shell({"--num_processes", "2"}, "echo ready; exec sleep 1000"), [] {
    for (const int number : {SIGTERM, SIGINT, SIGCHLD}) ::signal(number, SIG_IGN);
  });
  REQUIRE(job.lines(2) == all_ready);
  job.send(SIGTERM);
  const auto finished = job.finish();
  CHECK(finished.status == 143);
  CHECK(finished.seconds < 20.0);
}

TEST_CASE("nobody reads the launcher's messages: the job ends in time all the same") {
  // A pipe that is full, as when the reader of stderr stands still.
  int full[2];
  REQUIRE(::pipe2(full, O_CLOEXEC | O_NONBLOCK) == 0);
  while (::write(full[1], "x", 1) == 1) {
  }
  ::fcntl(full[1], F_SETFL, 0);
  LaunchedJob job(shell({"--num_processes", "2", "--grace_period", "0.5"}, stubborn),
                  [&] { ::dup2(full[1], 2); });
  REQUIRE(job.lines(2) == all_ready);
  job.send(SIGTERM);
  CHECK(job.finish().status == 143);
  ::close(full[0]);
  ::close(full[1]);
}
