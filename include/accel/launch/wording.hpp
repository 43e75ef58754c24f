// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The launcher's words: how ranks, signals and endings are spelled in its messages, and how a
// message reaches stderr. Knows nothing of processes.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace accel::detail {

/// Writes one line to stderr, after "accel-launch: ", unless nobody takes it: a reader that stands
/// still must not hold up the end of a job.
void report_line(const std::string& sentence);

/// "rank 1" or "ranks 1, 2 and 5"; long lists are cut. "" for none.
std::string list_of(const std::vector<int>& ranks);

/// "SIGTERM".
std::string signal_name(int number);

/// "0.5 s".
std::string seconds(std::chrono::milliseconds time);

/// How a process ended, from its wait status: "exit code 7" or "killed by SIGSEGV (Segmentation
/// fault)".
std::string ending(int wait_status);

}  // namespace accel::detail
