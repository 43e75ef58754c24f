// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Whole small text files: read at once, replaced at once. Used for configurations and generated
// headers.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace accel::detail {

/// The text of a file. Throws Error(config) where it is missing, unreadable or too large to be a
/// configuration.
std::string read_text_file(const std::filesystem::path& path);

/// Writes beside `path` and renames, so that nobody ever sees half a file. Makes the folder where
/// it is missing. Throws Error(config) with the system's reason.
void replace_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace accel::detail
