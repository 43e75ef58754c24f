// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds the program of a job, before anything is started, so that a misspelt name is one sentence
// and not one a rank.
#pragma once

#include <string>

namespace accel::detail {

/// Where a program is, or why it cannot be run.
struct ProgramPath {
  std::string path;   ///< to give to execve
  std::string fault;  ///< a sentence; empty if the program can be run
  int exit_code = 0;  ///< what shells return for that fault: 127 not found, 126 not executable
};

/// Looks a program up as a shell does: a name without a slash in `search_path` (PATH), another as
/// it is.
ProgramPath find_program(const std::string& name, const std::string& search_path);

/// The sentence for a program that execve refused with `error` although it was found.
std::string exec_fault(const std::string& path, int error);

/// The exit code for that.
int exec_exit_code(int error);

}  // namespace accel::detail
