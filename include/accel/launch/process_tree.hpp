// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a process has started, directly and indirectly. A subreaper inherits its orphans, so that
// for one the list is whole: a grandchild that left its group and session is still in it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

namespace accel::detail {

/// A process below another one.
struct Descendant {
  pid_t pid = 0;
  pid_t group = 0;
};

/// Every process below `ancestor`, those that have ended and were not waited for included, from one
/// reading of /proc. Processes may come and go meanwhile.
std::vector<Descendant> descendants(pid_t ancestor);

/// Makes the calling process inherit the orphans below it, for the lifetime of the object.
class Subreaper {
 public:
  Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;
  ~Subreaper();

 private:
  int before_ = 0;
};

/// Kills everything below the calling process, which must be a subreaper, and returns when it is
/// gone. `ended` hears of each child's wait status.
void kill_descendants(const std::function<void(pid_t pid, int status)>& ended = {});

}  // namespace accel::detail
