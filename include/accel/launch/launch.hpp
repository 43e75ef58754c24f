// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of a job on this host and stays with them until the last has ended: what
// accel-launch does once it has read its flags. Comes after the configuration; each rank finds what
// it needs through comm/ranks.hpp.
//
// Two processes of ours stand over the ranks:
//
//     front (the caller)  -- passes SIGTERM, SIGINT and SIGHUP on, waits for the keeper
//       keeper            -- owns the ranks: starts, watches and stops them (supervisor.hpp)
//         rank 0 .. n-1   -- a session and process group each
//
// One of them can be killed with SIGKILL and nothing is left behind: the keeper sees the front's
// end of a pipe close and stops the job; if it is the keeper that dies, the kernel kills the ranks
// (PR_SET_PDEATHSIG) and hands what they started to the front, which kills that. Both are
// subreapers, so that a grandchild cannot leave by outliving its parent.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accel {

/// What to start, and how.
struct LaunchJob {
  /// The program (looked up in PATH) and its arguments, the same for every rank.
  std::vector<std::string> command;
  int num_processes = 1;

  std::optional<int> main_process_port;            ///< MASTER_PORT; none or 0: a free one
  std::optional<int> num_cpu_threads_per_process;  ///< none: the caller's, else cores / ranks

  /// Further variables of every rank; these win over the caller's.
  std::map<std::string, std::string> environment;

  std::chrono::milliseconds grace_period{30'000};  ///< from SIGTERM to SIGKILL

  /// Rank r writes <log_dir>/<r>/stdout.log and stderr.log; empty: to the caller's output.
  std::filesystem::path log_dir;
  bool quiet = false;  ///< say nothing of ranks that fail
};

/// Runs the job to its end. Returns 0 if every rank did; the exit code of the first rank that
/// failed (128 + n if signal n killed it; 127 if the program is not there, 126 if it cannot be
/// executed); 143, 130 or 129 after SIGTERM, SIGINT or SIGHUP. Says on stderr which rank failed
/// first.
///
/// When it returns no process of the job is left, whatever ranks have started.
///
/// Takes over the calling process meanwhile: its signals, and every child it has. Call it from a
/// program that has one thread and no children of its own. Throws Error(launch) if the port is
/// taken, and Error(config) if the job makes no sense.
int launch(const LaunchJob& job);

}  // namespace accel
