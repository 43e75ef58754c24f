// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How a finished folder takes the place of an older one, so that at every instant one of the two is
// whole. A folder is filled as `<folder>.tmp-save`; `publish_folder` gives it its name. Knows
// nothing of what is inside, but never deletes a file that it was not told to. state_folder.hpp
// says what is inside. Needs no LibTorch.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace accel::detail {

/// An absolute path without a trailing separator, links resolved: the folder itself, not a name for
/// it.
std::filesystem::path plain_folder(const std::filesystem::path& folder);

/// Where a folder is filled, and where an interrupted save leaves what it had.
std::filesystem::path unfinished_folder(const std::filesystem::path& folder);

/// The folder, or its former content where a save was killed between the two renames of a file
/// system that cannot exchange folders at once. Local; reads only.
std::filesystem::path readable_folder(const std::filesystem::path& folder);

/// Makes an empty `unfinished_folder(folder)`. Removes what an earlier, interrupted save left.
void begin_folder(const std::filesystem::path& folder);

/// Gives the unfinished folder its name, durably. Files of an existing folder whose names are not
/// in `superseded` (a log, a picture, other checkpoints: nothing that a save wrote) move on into
/// the new one. `exchange` false keeps to plain renames, as on a file system that cannot exchange
/// two folders.
void publish_folder(const std::filesystem::path& folder, const std::set<std::string>& superseded,
                    bool exchange = true);

}  // namespace accel::detail
