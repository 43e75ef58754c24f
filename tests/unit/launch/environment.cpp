// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks find in their environment, and that discover_ranks understands it.
#include "launched_job.hpp"

#include "support/scratch_folder.hpp"

#include <accel/comm/ranks.hpp>
#include <accel/detail/cores.hpp>
#include <accel/launch/rank_environment.hpp>

#include <sched.h>

#include <fstream>
#include <map>

using accel::detail::Environment;
using accel::detail::rank_environment;
using accel::detail::threads_per_rank;
using namespace accel_test;

namespace {

accel::Ranks discovered(const Environment& environment) {
  return accel::discover_ranks([&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

/// Runs `env` as a job; the environment of each rank.
std::vector<Environment> environments_of(int processes, std::vector<std::string> flags,
                                         const std::function<void()>& in_child = {}) {
  const ScratchFolder folder;
  flags.insert(flags.end(), {"--num_processes", std::to_string(processes), "--log_dir",
                             folder.path().string(), "env"});
  LaunchedJob job(flags, in_child);
  const auto finished = job.finish();
  INFO(finished.err);
  REQUIRE(finished.status == 0);
  std::vector<Environment> all(static_cast<std::size_t>(processes));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::ifstream file(folder / std::to_string(rank) / "stdout.log");
    for (std::string line; std::getline(file, line);)
      if (const auto equals = line.find('='); equals != std::string::npos)
        all[rank].insert_or_assign(line.substr(0, equals), line.substr(equals + 1));
  }
  return all;
}

std::string value(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "(unset)" : found->second;
}

void only_core_0() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

}  // namespace

TEST_CASE("ranks find torchrun's variables, and discover_ranks reads them back") {
  const auto all = environments_of(3, {});
  for (int rank = 0; rank < 3; ++rank) {
    const auto& environment = all[static_cast<std::size_t>(rank)];
    const auto number = std::to_string(rank);
    CAPTURE(rank);
    CHECK(value(environment, "RANK") == number);
    CHECK(value(environment, "LOCAL_RANK") == number);
    CHECK(value(environment, "ROLE_RANK") == number);
    CHECK(value(environment, "WORLD_SIZE") == "3");
    CHECK(value(environment, "LOCAL_WORLD_SIZE") == "3");
    CHECK(value(environment, "ROLE_WORLD_SIZE") == "3");
    CHECK(value(environment, "GROUP_RANK") == "0");
    CHECK(value(environment, "GROUP_WORLD_SIZE") == "1");
    CHECK(value(environment, "ROLE_NAME") == "default");
    CHECK(value(environment, "MASTER_ADDR") == "127.0.0.1");
    CHECK(value(environment, "MASTER_PORT") == value(all[0], "MASTER_PORT"));
    CHECK(value(environment, "HOME") == "/nonexistent");  // the caller's own

    const auto ranks = discovered(environment);
    CHECK(ranks.rank == rank);
    CHECK(ranks.size == 3);
    CHECK(ranks.local_rank == rank);
    CHECK(ranks.local_size == 3);
    CHECK(ranks.launcher == "accel-launch");
    CHECK(ranks.master_addr == "127.0.0.1");
    CHECK(std::to_string(ranks.master_port) == value(all[0], "MASTER_PORT"));
    CHECK(ranks.store_fd.has_value() == (rank == 0));
    CHECK_FALSE(ranks.agent_store);
  }
}

TEST_CASE("flags reach the ranks under every name that they go by, and nothing that was not said") {
  const auto plain = environments_of(1, {})[0];
  for (const char* name : {"ACCELERATE_MIXED_PRECISION", "ACCEL_MIXED_PRECISION",
                           "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_DEBUG_MODE",
                           "ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "ACCEL_CONFIG_FILE"})
    CHECK(value(plain, name) == "(unset)");

  const auto said = environments_of(
      1, {"--mixed_precision", "bf16", "--gradient-accumulation-steps", "4", "--debug", "--cpu"},
      [] { ::setenv("ACCEL_MIXED_PRECISION", "fp16", 1); })[0];
  CHECK(value(said, "ACCELERATE_MIXED_PRECISION") == "bf16");
  CHECK(value(said, "ACCEL_MIXED_PRECISION") == "bf16");  // the flag wins there too
  CHECK(value(said, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS") == "4");
  CHECK(value(said, "ACCELERATE_DEBUG_MODE") == "true");
  CHECK(value(said, "ACCELERATE_USE_CPU") == "true");
}

TEST_CASE("OMP_NUM_THREADS: the flag, else the caller's, else cores divided by ranks") {
  const auto threads = [](int processes, const std::vector<std::string>& flags,
                          const std::function<void()>& in_child = {}) {
    return value(environments_of(processes, flags, in_child).back(), "OMP_NUM_THREADS");
  };
  const int cores = accel::detail::available_cores();
  CHECK(threads(1, {}) == std::to_string(cores));
  CHECK(threads(2, {}) == std::to_string(std::max(1, cores / 2)));
  CHECK(threads(1, {}, only_core_0) == "1");
  CHECK(threads(2, {}, [] { ::setenv("OMP_NUM_THREADS", "5", 1); }) == "5");
  CHECK(threads(2, {"--num_cpu_threads_per_process", "3"},
                [] { ::setenv("OMP_NUM_THREADS", "5", 1); }) == "3");
}

TEST_CASE("threads a rank are rounded down, and never 0") {
  accel::LaunchJob job;
  job.num_processes = 3;
  CHECK(threads_per_rank(job, {}, 8) == "2");
  CHECK(threads_per_rank(job, {}, 2) == "1");
  CHECK(threads_per_rank(job, {{"OMP_NUM_THREADS", "7"}}, 8) == "7");
  job.num_cpu_threads_per_process = 4;
  CHECK(threads_per_rank(job, {{"OMP_NUM_THREADS", "7"}}, 8) == "4");
}

TEST_CASE(
    "a job inside a rank of another launcher gives its own numbers and leaves the other's behind") {
  const Environment outer{{"RANK", "1"},           {"WORLD_SIZE", "2"},
                          {"MASTER_PORT", "9"},    {"TORCHELASTIC_RUN_ID", "none"},
                          {"ACCEL_STORE_FD", "9"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  accel::LaunchJob job;
  job.num_processes = 2;
  const auto first = discovered(rank_environment(job, 0, {4000, 5}, outer));
  CHECK(first.rank == 0);
  CHECK(first.store_fd == 5);
  CHECK_FALSE(first.agent_store);
  const auto second = discovered(rank_environment(job, 1, {4000, 5}, outer));
  CHECK(second.rank == 1);
  CHECK(second.master_port == 4000);
  CHECK(second.launcher == "accel-launch");
  CHECK_FALSE(second.store_fd);
}

TEST_CASE("the job's own variables win over the caller's, the rank's numbers over both") {
  accel::LaunchJob job;
  job.environment = {{"COLOUR", "blue"}, {"RANK", "99"}};
  const auto environment =
      rank_environment(job, 0, {4000, 5}, {{"COLOUR", "red"}, {"SHAPE", "round"}});
  CHECK(value(environment, "COLOUR") == "blue");
  CHECK(value(environment, "SHAPE") == "round");
  CHECK(value(environment, "RANK") == "0");
  CHECK(value(environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "1");
  CHECK(value(rank_environment(job, 0, {4000, 5}, {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}}),
              "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0");
}
