// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/process_tree.hpp.

#include <accel/launch/process_tree.hpp>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <unordered_map>

namespace accel::detail {

namespace {

struct Stat {
  pid_t parent = 0;
  pid_t group = 0;
};

/// Reads /proc/<pid>/stat: "pid (name) state parent group ...", where the name may hold spaces and
/// brackets. The state is not asked: a process whose first thread has ended reads as a zombie
/// although its other threads run.
bool read_stat(const std::filesystem::path& folder, Stat& stat) {
  std::ifstream file(folder / "stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const auto after_name = line.rfind(')');
  if (after_name == std::string::npos) return false;
  return std::sscanf(line.c_str() + after_name + 1, " %*c %d %d", &stat.parent, &stat.group) == 2;
}

}  // namespace

std::vector<Descendant> descendants(pid_t ancestor) {
  std::unordered_map<pid_t, Stat> processes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (!std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    Stat stat;
    if (read_stat(entry->path(), stat)) processes.emplace(std::stoi(name), stat);
  }
  std::vector<Descendant> below;
  for (const auto& [pid, stat] : processes) {
    // A parent may end between two reads; its child is then seen below nobody, and is found by the
    // next reading. The count is for numbers that were reused between two reads, which could close
    // a circle.
    auto steps = processes.size();
    for (auto at = processes.find(pid); at != processes.end() && steps > 0; --steps) {
      if (at->second.parent == ancestor) {
        below.push_back({pid, stat.group});
        break;
      }
      at = processes.find(at->second.parent);
    }
  }
  return below;
}

Subreaper::Subreaper() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }

void kill_descendants(const std::function<void(pid_t, int)>& ended) {
  // Each round kills what it sees; what was started meanwhile is handed to us and seen by the next.
  while (true) {
    pid_t child = 0;
    int status = 0;
    while ((child = ::waitpid(-1, &status, WNOHANG)) > 0)
      if (ended) ended(child, status);
    if (child < 0) return;
    for (const auto& process : descendants(::getpid())) ::kill(process.pid, SIGKILL);
    const timespec pause{0, 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace accel::detail
