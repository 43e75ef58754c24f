// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The one table of keys. Reading, writing, merging, flags, `accel-config show` and the
// documentation go by it, so that a key is added in one line (impl/config/keys.ipp) and a member
// (config.hpp). Comes after config.hpp; owns no file format.
#pragma once

#include <accel/config/key.hpp>

#include <span>
#include <string_view>

namespace accel {

/// Every key, in the order in which files are written.
std::span<const Key> config_keys();

/// The names of the sections, such as "fsdp_config".
std::span<const std::string_view> config_sections();

/// Accelerate's keys of the top level that Config::foreign holds.
std::span<const std::string_view> foreign_keys();

/// By full name; nullptr if there is no such key.
const Key* find_key(std::string_view name);

}  // namespace accel
