// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/detail/cores.hpp>

#include "support/scratch_folder.hpp"

#include <catch2/catch_test_macros.hpp>

#include <sched.h>

#include <fstream>

using accel::detail::available_cores;
using accel::detail::cpu_quota;
using accel_test::ScratchFolder;

namespace {

/// A machine as /proc and /sys show it.
struct Machine {
  void write(const std::string& path, const std::string& text) const {
    const auto file = folder / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  [[nodiscard]] std::optional<double> quota() const { return cpu_quota(folder.path()); }

  ScratchFolder folder;
};

}  // namespace

TEST_CASE("version 2: the least quota on the way to the root") {
  const Machine machine;
  CHECK_FALSE(machine.quota());
  machine.write("proc/self/cgroup", "0::/user.slice/job");
  CHECK_FALSE(machine.quota());
  machine.write("sys/fs/cgroup/user.slice/job/cpu.max", "max 100000");
  CHECK_FALSE(machine.quota());
  machine.write("sys/fs/cgroup/user.slice/job/cpu.max", "350000 100000");
  CHECK(machine.quota() == 3.5);
  machine.write("sys/fs/cgroup/user.slice/cpu.max", "200000 100000");
  CHECK(machine.quota() == 2.0);
  machine.write("sys/fs/cgroup/user.slice/other/cpu.max", "100000 100000");
  CHECK(machine.quota() == 2.0);
}

TEST_CASE("version 2 in a container: the group is the root of the mount") {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/");
  machine.write("sys/fs/cgroup/cpu.max", "50000 100000");
  CHECK(machine.quota() == 0.5);
  machine.write("proc/self/cgroup", "0::/../../host/path");
  CHECK(machine.quota() == 0.5);
}

TEST_CASE("version 1: two files, whatever the controllers that share the hierarchy") {
  const Machine machine;
  machine.write("proc/self/cgroup", "5:cpuset:/a\n4:cpu,cpuacct:/docker/x\n0::/");
  machine.write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1");
  machine.write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");
  CHECK_FALSE(machine.quota());
  machine.write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000");
  CHECK(machine.quota() == 2.5);
  // The path is the host's, and the container sees its own group at the root of the mount.
  const Machine container;
  container.write("proc/self/cgroup", "4:cpuacct,cpu:/docker/x");
  container.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000");
  container.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  CHECK(container.quota() == 1.5);
}

TEST_CASE("files that hold something else are no quota") {
  const Machine machine;
  machine.write("proc/self/cgroup", "nonsense\n0::/\n7:cpu");
  machine.write("sys/fs/cgroup/cpu.max", "many");
  CHECK_FALSE(machine.quota());
  machine.write("sys/fs/cgroup/cpu.max", "100000 0");
  CHECK_FALSE(machine.quota());
}

TEST_CASE("cores follow the affinity mask") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(available_cores() >= 1);
  CHECK(available_cores() <= CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    CPU_SET(core, &one);
    break;
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(available_cores() == 1);
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
}
