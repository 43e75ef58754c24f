// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// From a parsed file to a Config: looks each key up in the table, checks its type and value, and
// remembers its line. Comes after document.hpp (syntax); yaml.hpp and merge.hpp call it.
#pragma once

#include <accel/config/config.hpp>
#include <accel/config/faults.hpp>

#include <map>
#include <string>
#include <string_view>

namespace accel::detail {

/// Puts what `text` holds into `config`. Adds what is wrong to `faults`; `lines` gets the line of
/// each key that was given.
void read_into(Config& config, std::string_view text, const std::string& name, Faults& faults,
               std::map<std::string, int>& lines);

}  // namespace accel::detail
