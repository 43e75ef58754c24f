// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The C++ header that a configuration becomes at build time: four aliases, so that the strategy is
// a type and the file is still the one place where it is chosen. Written by `accel-config header`,
// which the CMake function accel_policy_header calls.
#pragma once

#include <accel/config/policy_names.hpp>

#include <string>

namespace accel {

/// What the header says besides the policies.
struct PolicyHeaderOptions {
  std::string source =
      "a configuration";  ///< named in the first line; leave out what differs between machines
  std::string name_space = "configured";  ///< `a` or `a::b`
};

/// The text of the header. It includes <accel/policies.hpp> and nothing else, and defines in its
/// namespace Backend, Precision, Accumulation, Placement and `apply`: apply<accel::Accelerator> is
/// the accelerator that the configuration describes. The same arguments give the same text. Throws
/// Error(config) if the name of the namespace or of a class is no C++ name.
std::string policy_header(const PolicyNames& names, const PolicyHeaderOptions& options = {});

}  // namespace accel
