// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How every part of the library reads environment variables: through a function, so that a test (or
// a program that embeds several jobs) hands in an environment of its own. Owns no names of
// variables: keys.hpp has those of the configuration, comm/ranks.hpp those of launchers.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace accel {

/// Reads one environment variable; nullopt if it is unset.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// The process's own environment.
std::optional<std::string> process_environment(const std::string& name);

}  // namespace accel
