// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// From four policies, as they are spelled, to a configuration that means them: the way back of
// policy_names.hpp. Programs that write a configuration use it, and tests that compare the two
// directions.
#pragma once

#include <accel/config/config.hpp>
#include <accel/config/policy_names.hpp>

namespace accel {

/// A configuration that means these policies, the smallest there is (2 processes for ddp). Takes
/// FSDP's names (full_shard) and any white space. Throws Error(config) where a spelling is not one
/// of a shipped policy, or no configuration means it.
Config config_of(const PolicyNames& names);

}  // namespace accel
