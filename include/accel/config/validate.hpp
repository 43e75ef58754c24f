// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The rules between keys: what each value alone cannot show. Each rule is one sentence that ends
// with the fix, and all that are broken are reported. Comes after the values are known (yaml.hpp,
// merge.hpp). A configuration that passes has policies (policy_names.hpp), and they go together
// (policy/compatible.hpp): a test compares the two sets of rules.
#pragma once

#include <accel/config/config.hpp>
#include <accel/config/faults.hpp>

#include <string>

namespace accel {

/// Adds the broken rules to `faults`; `where` begins each sentence.
void check_rules(const Config& config, const std::string& where, Faults& faults);

/// Throws Error(config) with all broken rules.
void validate(const Config& config, const std::string& where = "configuration");

}  // namespace accel
