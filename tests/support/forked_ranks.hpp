// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Two ranks as forked processes that agree over a socket pair: for tests of what happens to one
// rank when the other is killed. Only for programs without LibTorch, whose threads do not survive a
// fork.
#pragma once

#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accel_test {

/// How a rank ended: the signal that killed it, or what it threw (empty if nothing).
struct RankEnd {
  int signal = 0;
  std::string error;
};

/// `rank_body(rank, all_agree)`, once in each of two processes; all_agree is false where the peer
/// is gone.
using RankBody = std::function<void(int rank, const std::function<bool(bool)>& all_agree)>;

inline std::array<RankEnd, 2> run_two_ranks(const RankBody& rank_body) {
  int peers[2];
  std::array<pid_t, 2> processes{};
  std::array<int, 2> reports{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, peers) != 0) {
    throw std::runtime_error("socketpair");
  }
  for (int rank = 0; rank < 2; ++rank) {
    int report[2];
    if (::pipe(report) != 0) {
      throw std::runtime_error("pipe");
    }
    processes[rank] = ::fork();
    if (processes[rank] == 0) {
      ::signal(SIGPIPE, SIG_IGN);
      ::alarm(30);
      ::close(report[0]);
      ::close(peers[1 - rank]);
      const auto all_agree = [socket = peers[rank]](bool mine) {
        char theirs = 0;
        const char own = mine ? 'y' : 'n';
        const bool sent = ::write(socket, &own, 1) == 1;
        return ::read(socket, &theirs, 1) == 1 && sent && mine && theirs == 'y';
      };
      std::string error;
      try {
        rank_body(rank, all_agree);
      } catch (const std::exception& problem) {
        error = problem.what();
      }
      const auto written = ::write(report[1], error.data(), error.size());
      ::_exit(written < 0 ? 1 : 0);
    }
    ::close(report[1]);
    reports[rank] = report[0];
  }
  ::close(peers[0]);
  ::close(peers[1]);
  std::array<RankEnd, 2> ends;
  for (int rank = 0; rank < 2; ++rank) {
    char buffer[512];
    for (ssize_t got = 0; (got = ::read(reports[rank], buffer, sizeof buffer)) > 0;) {
      ends[rank].error.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(reports[rank]);
    int status = 0;
    ::waitpid(processes[rank], &status, 0);
    ends[rank].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  return ends;
}

}  // namespace accel_test
