// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/configured_job.hpp.
#include <accel/launch/configured_job.hpp>
#include <accel/config/keys.hpp>
#include <accel/detail/error.hpp>

namespace accel {

namespace {

/// Every name of a key gets the flag's value: one that was left as it is could outrank it.
void export_flags(const ConfigSources& sources, std::map<std::string, std::string>& environment) {
  for (const auto& [name, text] : sources.flags) {
    const Key* key = find_key(name);
    if (key == nullptr) continue;
    for (const auto& variable : environment_names(*key)) environment[variable] = text;
  }
  if (sources.file)
    environment["ACCEL_CONFIG_FILE"] = std::filesystem::absolute(*sources.file).string();
}

}  // namespace

LaunchJob configured_job(const ResolvedConfig& resolved, const ConfigSources& sources) {
  const auto& config = resolved.config;
  if (config.num_machines > 1)
    detail::fail(
        ErrorCategory::launch,
        "num_machines is {} ({}), but this release of accel-launch starts processes on one host; "
        "set it to 1, or start the job with mpirun or torchrun, whose ranks are found too",
        config.num_machines, resolved.origin("num_machines").where);
  LaunchJob job;
  job.num_processes = config.num_processes;
  job.main_process_port = config.main_process_port;
  job.num_cpu_threads_per_process = config.num_cpu_threads_per_process;
  const bool from_file =
      resolved.origin("num_cpu_threads_per_process").source == ConfigSource::file;
  if (from_file && sources.environment("OMP_NUM_THREADS")) job.num_cpu_threads_per_process.reset();
  export_flags(sources, job.environment);
  if (config.gpu_ids && *config.gpu_ids != "all")
    job.environment["CUDA_VISIBLE_DEVICES"] = *config.gpu_ids;
  return job;
}

}  // namespace accel
