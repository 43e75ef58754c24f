// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the configuration file is, if nobody says so. Comes before merge.hpp, which reads what was
// found.
//
// The first of these that is named or exists:
//   1. --config_file
//   2. ACCEL_CONFIG_FILE, ACCELERATE_CONFIG_FILE
//   3. ./accel.yaml
//   4. accel/accel.yaml in the user's configuration folder ($XDG_CONFIG_HOME, else ~/.config)
//   5. Accelerate's default file ($HF_HOME/accelerate/default_config.yaml, else below
//      $XDG_CACHE_HOME or ~/.cache)
#pragma once

#include <accel/config/environment.hpp>

#include <filesystem>
#include <optional>
#include <vector>

namespace accel {

/// The files of places 3 to 5, best first, whether they exist or not.
std::vector<std::filesystem::path> config_file_places(
    const EnvironmentLookup& environment = process_environment);

/// The file to read; nullopt if none is named and none exists, which is no error: the defaults are
/// a configuration. Throws Error(config) if one is named (`named` is the value of --config_file)
/// that does not exist.
std::optional<std::filesystem::path> find_config_file(
    const std::optional<std::filesystem::path>& named = std::nullopt,
    const EnvironmentLookup& environment = process_environment);

}  // namespace accel
