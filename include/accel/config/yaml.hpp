// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Configuration files: YAML, or JSON with the same keys. What is written reads back equal, and
// files that Accelerate wrote are read as they are (its older forms too: legacy spellings are
// translated). Comes after keys.hpp, which says what a file may hold; merge.hpp adds the
// environment and flags. Looks at each value alone: validate.hpp has the rules between keys.
#pragma once

#include <accel/config/config.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace accel {

/// Reads a file. Throws Error(config) with every fault of it: unknown keys (with a suggestion),
/// wrong types, values out of range, keys given twice, each with file and line.
Config read_config(const std::filesystem::path& path);

/// The same for a text; `name` stands for the file in messages, and ".json" at its end means JSON.
Config parse_config(std::string_view text, const std::string& name);

/// Writes JSON if the name ends in ".json", else YAML with a comment on each line. The folder is
/// made where it is missing; the file is there whole or not at all. Throws Error(config) where the
/// file cannot be written, or a value would not read back equal.
void write_config(const std::filesystem::path& path, const Config& config);

/// What write_config writes: Accelerate's main keys, and whatever differs from its default.
std::string to_yaml(const Config& config);
std::string to_json(const Config& config);

}  // namespace accel
