// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a rank of a launched job finds in its environment: the inverse of discover_ranks
// (comm/ranks.hpp). Pure; starts nothing.
#pragma once

#include <accel/launch/launch.hpp>

#include <map>
#include <string>

namespace accel::detail {

using Environment = std::map<std::string, std::string>;

/// The calling process's whole environment.
Environment current_environment();

/// Where the ranks of a job meet.
struct MeetingPoint {
  int port = 0;
  int store_fd = -1;  ///< the listening socket that rank 0 inherits
};

/// The environment of one rank: the `caller`'s, then `job.environment`, then the rank's own numbers
/// (torchrun's names), each over the one before.
Environment rank_environment(const LaunchJob& job, int rank, const MeetingPoint& meeting_point,
                             const Environment& caller);

/// OMP_NUM_THREADS of every rank: the job's number, else the variable in `environment`, else
/// `cores` divided by the ranks, at least 1.
std::string threads_per_rank(const LaunchJob& job, const Environment& environment, int cores);

}  // namespace accel::detail
