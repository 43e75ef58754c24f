// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// From a configuration to the job that accel-launch runs. Comes after config/merge.hpp, which has
// found what holds; before launch.hpp, which runs it.
#pragma once

#include <accel/config/merge.hpp>
#include <accel/launch/launch.hpp>

namespace accel {

/// The job of `resolved` on this host, without its command. What was said with flags
/// (`sources.flags`, `sources.file`) goes into the environment of the ranks, so that a program that
/// resolves its configuration finds what the launcher found; what the environment and files said is
/// there already.
///
/// Threads: a flag or a variable of ours, else the caller's OMP_NUM_THREADS, else the file's
/// number, else cores / ranks. Throws Error(launch) for a job of several machines.
LaunchJob configured_job(const ResolvedConfig& resolved, const ConfigSources& sources);

}  // namespace accel
