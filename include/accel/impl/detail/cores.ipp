// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of detail/cores.hpp.

#include <accel/detail/cores.hpp>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

namespace accel::detail {

namespace {

namespace fs = std::filesystem;

int affinity_cores() {
  // A fixed cpu_set_t ends at 1024 cores, and the kernel refuses a set that is smaller than its
  // own.
  for (int most = 1024; most <= (1 << 20); most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(static_cast<std::size_t>(most)), [](cpu_set_t* s) { CPU_FREE(s); });
    if (set == nullptr) break;
    const auto bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most));
    if (sched_getaffinity(0, bytes, set.get()) == 0) return CPU_COUNT_S(bytes, set.get());
  }
  return 1;
}

/// Version 2: "max 100000" or "150000 100000".
std::optional<double> quota_of_version_2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  return std::strtod(quota.c_str(), nullptr) / period;
}

/// Version 1: two files, and a quota of -1 is none.
std::optional<double> quota_of_version_1(const fs::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us");
  std::ifstream period_file(group / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0)
    return std::nullopt;
  return quota / period;
}

/// The least quota from `group` up to the root of the hierarchy that is mounted at `mount`. Inside
/// a container the group's path may be the host's and exist under no mount; the root of the mount
/// is then the container's own group.
template <class Read>
void take_least(double& least, const fs::path& mount, const fs::path& group, Read read) {
  for (fs::path at = group.relative_path();; at = at.parent_path()) {
    if (const auto quota = read(mount / at)) least = std::min(least, *quota);
    if (at.empty()) return;
  }
}

bool lists_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const auto comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  constexpr double none = std::numeric_limits<double>::infinity();
  double least = none;
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" or "4:cpu,cpuacct:/a/b"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      take_least(least, mounts, group, quota_of_version_2);
      take_least(least, mounts / "unified", group, quota_of_version_2);
    } else if (lists_cpu(controllers)) {
      for (const auto& name : {controllers, std::string("cpu")})
        take_least(least, mounts / name, group, quota_of_version_1);
    }
  }
  if (least == none) return std::nullopt;
  return least;
}

int available_cores() {
  const int cores = affinity_cores();
  const auto quota = cpu_quota();
  return std::max(1, quota && *quota < cores ? static_cast<int>(*quota) : cores);
}

}  // namespace accel::detail
