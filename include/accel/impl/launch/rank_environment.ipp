// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/rank_environment.hpp.
#include <accel/launch/rank_environment.hpp>
#include <accel/detail/cores.hpp>

#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace accel::detail {

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string threads_per_rank(const LaunchJob& job, const Environment& environment, int cores) {
  if (job.num_cpu_threads_per_process) return std::to_string(*job.num_cpu_threads_per_process);
  if (const auto own = environment.find("OMP_NUM_THREADS"); own != environment.end())
    return own->second;
  return std::to_string(std::max(1, cores / job.num_processes));
}

Environment rank_environment(const LaunchJob& job, int rank, const MeetingPoint& meeting_point,
                             const Environment& caller) {
  Environment environment = caller;
  // The job may itself have been started by a rank of another launcher, whose numbers are not ours.
  std::erase_if(environment,
                [](const auto& entry) { return entry.first.starts_with("TORCHELASTIC_"); });
  environment.erase("ACCEL_STORE_FD");
  for (const auto& [name, value] : job.environment) environment[name] = value;

  const auto size = std::to_string(job.num_processes);
  const auto number = std::to_string(rank);
  const Environment own{
      {"RANK", number},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", number},
      {"LOCAL_WORLD_SIZE", size},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", number},
      {"ROLE_WORLD_SIZE", size},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(meeting_point.port)},
      {"OMP_NUM_THREADS", threads_per_rank(job, environment, available_cores())},
      {"ACCEL_LAUNCHER", "accel-launch"},
  };
  for (const auto& [name, value] : own) environment[name] = value;
  environment.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING",
                      "1");  // as torchrun, where the caller has not chosen
  if (rank == 0) environment["ACCEL_STORE_FD"] = std::to_string(meeting_point.store_fd);
  return environment;
}

}  // namespace accel::detail
