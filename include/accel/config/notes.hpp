// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a person should hear about a configuration that is legal. Comes after validate.hpp, which
// refuses what is not.
#pragma once

#include <accel/config/config.hpp>

#include <string>
#include <vector>

namespace accel {

/// Keys that are set and have no effect, and values that do less than they seem to. One sentence
/// each.
std::vector<std::string> config_notes(const Config& config);

}  // namespace accel
