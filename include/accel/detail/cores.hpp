// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How many cores this process may keep busy. The number of cores of the machine is the wrong answer
// inside a container, a batch job or under taskset. Threads a rank come from this number, divided
// by the ranks of the host.
#pragma once

#include <filesystem>
#include <optional>

namespace accel::detail {

/// Cores of the affinity mask, cut down to the CPU quota of the cgroup, rounded down; at least 1.
int available_cores();

/// The CPU quota of this process's cgroups (version 1 or 2), in cores: the least one on the way to
/// the root. nullopt if there is none. `root` stands for / (a test gives a folder of its own).
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace accel::detail
