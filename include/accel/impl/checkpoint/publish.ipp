// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/publish.hpp.
#include <accel/checkpoint/publish.hpp>

#include <accel/checkpoint/file.hpp>
#include <accel/detail/error.hpp>

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <stdio.h>

namespace accel::detail {
namespace {

namespace fs = std::filesystem;

fs::path with_suffix(const fs::path& folder, const char* suffix) {
  return plain_folder(folder).concat(suffix);
}

fs::path replaced_folder(const fs::path& folder) { return with_suffix(folder, ".old-save"); }

void rename_or_fail(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    fail(ErrorCategory::checkpoint, "cannot rename {} to {}: {}", from.string(), to.string(),
         error.message());
  }
}

// Swaps two folders in one step; false where the file system or the kernel cannot.
bool exchange_folders(const fs::path& left, const fs::path& right) {
  if (::renameat2(AT_FDCWD, left.c_str(), AT_FDCWD, right.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) {
    return false;
  }
  fail(ErrorCategory::checkpoint, "cannot replace {}: {}", right.string(),
       std::system_category().message(errno));
}

// Before the change of names: everything that is not of the old state gets a second link in the new
// folder, so that it is never absent, and a log that is open keeps growing under its name.
void link_foreign_files(const fs::path& old_folder, const fs::path& new_folder,
                        const std::set<std::string>& superseded) {
  for (const auto& entry : fs::directory_iterator(old_folder)) {
    const auto name = entry.path().filename();
    if (superseded.contains(name.string()) || fs::exists(fs::symlink_status(new_folder / name))) {
      continue;
    }
    std::error_code error;
    fs::copy(entry.path(), new_folder / name,
             fs::copy_options::recursive | fs::copy_options::create_hard_links |
                 fs::copy_options::copy_symlinks,
             error);
    if (error) {
      fail(
          ErrorCategory::checkpoint,
          "cannot keep {} while the state beside it is replaced: {}; save into a folder of its own",
          entry.path().string(), error.message());
    }
  }
}

// After the change of names: what appeared in the old folder meanwhile moves on, the second links
// go.
void move_stragglers(const fs::path& old_folder, const fs::path& new_folder) {
  for (const auto& entry : fs::directory_iterator(old_folder)) {
    const auto target = new_folder / entry.path().filename();
    if (!fs::exists(fs::symlink_status(target))) {
      fs::rename(entry.path(), target);
    } else if (entry.is_directory() && !entry.is_symlink()) {
      move_stragglers(entry.path(), target);
    } else {
      fs::remove(entry.path());
    }
  }
  fs::remove(old_folder);
}

// The new folder is published already, so a fault here must not fail the save: the rest is left to
// the next one.
void retire_folder(const fs::path& old_folder, const fs::path& new_folder,
                   const std::set<std::string>& superseded) {
  try {
    for (const auto& name : superseded) {
      fs::remove(old_folder / name);
    }
    move_stragglers(old_folder, new_folder);
  } catch (const fs::filesystem_error&) {
  }
}

}  // namespace

fs::path plain_folder(const fs::path& folder) {
  std::error_code error;
  auto plain = fs::absolute(folder, error);
  if (!error) plain = fs::weakly_canonical(plain, error);
  if (!error && !plain.has_filename()) {
    plain = plain.parent_path();
  }
  if (error || !plain.has_filename()) {
    fail(ErrorCategory::checkpoint, "'{}' cannot hold a state: {}", folder.string(),
         error ? error.message() : "give a folder below it");
  }
  return plain;
}

fs::path unfinished_folder(const fs::path& folder) { return with_suffix(folder, ".tmp-save"); }

fs::path readable_folder(const fs::path& folder) {
  auto plain = plain_folder(folder);
  if (!fs::exists(plain) && fs::exists(replaced_folder(plain))) {
    return replaced_folder(plain);
  }
  return plain;
}

void begin_folder(const fs::path& folder) {
  const auto plain = plain_folder(folder);
  const auto unfinished = unfinished_folder(plain);
  const auto replaced = replaced_folder(plain);
  std::error_code error;
  if (fs::exists(plain) && !fs::is_directory(plain)) {
    fail(ErrorCategory::checkpoint, "cannot save in {}: it is a file, not a folder",
         plain.string());
  }
  if (fs::exists(replaced) && !fs::exists(plain)) {
    rename_or_fail(replaced, plain);
  }
  // What stands there now is superseded: it was linked into the folder before the folder was
  // published.
  for (const auto& old : {replaced, unfinished}) {
    fs::remove_all(old, error);
    if (error && fs::exists(fs::symlink_status(old)))
      fail(ErrorCategory::checkpoint, "cannot remove {}, of an earlier save: {}", old.string(),
           error.message());
  }
  fs::create_directories(unfinished, error);
  if (error) {
    fail(ErrorCategory::checkpoint, "cannot create {}: {}", unfinished.string(), error.message());
  }
}

void publish_folder(const fs::path& folder, const std::set<std::string>& superseded,
                    bool exchange) {
  const auto plain = plain_folder(folder);
  const auto unfinished = unfinished_folder(plain);
  sync_folder(unfinished);
  if (!fs::exists(plain)) {
    rename_or_fail(unfinished, plain);
    sync_folder(plain.parent_path());
    return;
  }
  link_foreign_files(plain, unfinished, superseded);
  sync_folder(unfinished);
  const auto replaced = replaced_folder(plain);
  if (exchange && exchange_folders(unfinished, plain)) {
    sync_folder(plain.parent_path());
    retire_folder(unfinished, plain, superseded);
  } else {
    rename_or_fail(plain, replaced);
    rename_or_fail(unfinished, plain);
    sync_folder(plain.parent_path());
    retire_folder(replaced, plain, superseded);
  }
}

}  // namespace accel::detail
