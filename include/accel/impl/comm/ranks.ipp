// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of comm/ranks.hpp.
#include <accel/comm/ranks.hpp>
#include <accel/detail/error.hpp>

#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>

namespace accel {

using detail::fail;

namespace {

/// The names under which one kind of launcher says the four numbers, and the words for it in a
/// sentence.
struct LauncherVariables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

/// In the order in which they are asked: torchrun inside an MPI job is the inner of the two.
constexpr std::array known_launchers{
    LauncherVariables{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    LauncherVariables{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    LauncherVariables{"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                      "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    LauncherVariables{"mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};
constexpr const LauncherVariables& torchrun_variables = known_launchers[0];

/// More than any machine has; a number beyond is a mistake.
constexpr int most_processes = 1 << 20;

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// One reading of the environment.
class Discovery {
 public:
  Discovery(const EnvironmentLookup& environment,
            const std::function<void(const std::string&)>& warn)
      : environment_(environment), warn_(warn) {}

  Ranks run() {
    for (const auto& names : known_launchers)
      if (environment_(names.rank)) return of_launcher(names);
    warn_of_leftovers();
    return {};
  }

 private:
  Ranks of_launcher(const LauncherVariables& names) {
    Ranks ranks;
    ranks.launcher = names.launcher;
    constexpr int most = std::numeric_limits<int>::max();
    ranks.rank = number(names.rank, 0, most).value();
    const auto size = number(names.size, 1, most_processes);
    if (!size) return without_size(names, ranks.rank);
    ranks.size = *size;
    if (ranks.rank >= ranks.size)
      fail(ErrorCategory::config,
           "accel: {} is {}, but {} is {}, and ranks count from 0; give ranks 0 to {}", names.rank,
           ranks.rank, names.size, ranks.size, ranks.size - 1);
    if (&names != &torchrun_variables) refuse_another_world(names, ranks.size);

    if (&names == &torchrun_variables) read_torchrun(ranks);
    read_local(names, ranks);
    if (ranks.size > 1) read_master(names, ranks);
    return ranks;
  }

  /// RANK without WORLD_SIZE. Any rank but 0 proves that there are others, and working alone would
  /// be wrong.
  Ranks without_size(const LauncherVariables& names, int rank) {
    if (rank > 0)
      fail(ErrorCategory::config,
           "accel: {} is {}, but {} is not set; set it to the number of processes, or unset {} for "
           "a job of one "
           "process",
           names.rank, rank, names.size, names.rank);
    warn("accel: {} is set, but {} is not: this is a job of one process. Set {} to the number of "
         "processes, or "
         "unset {}",
         names.rank, names.size, names.size, names.rank);
    return {};
  }

  /// A WORLD_SIZE of somebody else's beside the numbers of an MPI launcher.
  void refuse_another_world(const LauncherVariables& names, int size) {
    const auto other = number(torchrun_variables.size, 1, most_processes);
    if (other && *other != size)
      fail(ErrorCategory::config,
           "accel: {} is {}, but WORLD_SIZE is {} and RANK is not set; unset WORLD_SIZE, or set "
           "RANK too",
           names.size, size, *other);
  }

  /// What torchrun and accel-launch say beyond the four numbers. accel-launch removes
  /// TORCHELASTIC_* from its ranks, so that where both are present torchrun is the inner of the
  /// two.
  void read_torchrun(Ranks& ranks) {
    if (environment_("TORCHELASTIC_RUN_ID")) {
      // The spelling is Python's, which compares with str(True).
      ranks.agent_store = environment_("TORCHELASTIC_USE_AGENT_STORE") == "True";
      ranks.restart_count =
          number("TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<int>::max()).value_or(0);
      return;
    }
    if (environment_("ACCEL_LAUNCHER") != "accel-launch") return;
    ranks.launcher = "accel-launch";
    ranks.store_fd = number("ACCEL_STORE_FD", 0, std::numeric_limits<int>::max());
    if (ranks.store_fd && ranks.rank != 0)
      fail(ErrorCategory::config,
           "accel: ACCEL_STORE_FD is {}, but RANK is {}, and rank 0 alone serves the store; unset "
           "ACCEL_STORE_FD",
           *ranks.store_fd, ranks.rank);
  }

  void read_local(const LauncherVariables& names, Ranks& ranks) {
    const auto local_rank = number(names.local_rank, 0, std::numeric_limits<int>::max());
    const auto local_size = number(names.local_size, 1, most_processes);
    const bool one_host = ranks.size == 1 || is_loopback(address().value_or(""));
    if (!local_rank && !local_size) {
      // Hand-made jobs and Kubernetes operators say no more than RANK and WORLD_SIZE.
      ranks.local_rank = one_host ? ranks.rank : 0;
      ranks.local_size = one_host ? ranks.size : 1;
      return;
    }
    if (!local_rank && (ranks.size > 1 && *local_size > 1))
      fail(ErrorCategory::config,
           "accel: rank {}: {} is {}, but {} is not set; set it to 0 .. {} on each host",
           ranks.rank, names.local_size, *local_size, names.local_rank, *local_size - 1);
    if (!local_size && !one_host)
      fail(ErrorCategory::config,
           "accel: rank {}: {} is {}, but {} is not set; set it to the number of processes on each "
           "host",
           ranks.rank, names.local_rank, *local_rank, names.local_size);
    ranks.local_rank = local_rank.value_or(0);
    ranks.local_size = local_size.value_or(ranks.size);
    if (ranks.local_rank >= ranks.local_size)
      fail(ErrorCategory::config,
           "accel: rank {}: {} is {}, but the processes on this host are {} ({}); give local ranks "
           "0 to {}",
           ranks.rank, names.local_rank, ranks.local_rank, ranks.local_size,
           local_size ? names.local_size : names.size, ranks.local_size - 1);
    if (ranks.local_size > ranks.size)
      fail(ErrorCategory::config,
           "accel: rank {}: {} is {}, but the whole job has {} processes ({}); correct one",
           ranks.rank, names.local_size, ranks.local_size, ranks.size, names.size);
  }

  void read_master(const LauncherVariables& names, Ranks& ranks) {
    ranks.master_addr = address().value_or("");
    if (ranks.master_addr.empty()) {
      if (ranks.local_size < ranks.size)
        fail(ErrorCategory::config,
             "accel: rank {} of {}: the job has {} processes on this host, so it spans several, "
             "and MASTER_ADDR is "
             "not set; set it to the host of rank 0{}",
             ranks.rank, ranks.size, ranks.local_size,
             &names == &torchrun_variables
                 ? ""
                 : " (mpirun -x MASTER_ADDR=host, or mpiexec -genv MASTER_ADDR host)");
      ranks.master_addr = "127.0.0.1";
    }
    if (const auto port = this->port()) {
      ranks.master_port = *port;
      return;
    }
    ranks.master_port = default_port();
    if (&names == &torchrun_variables)
      warn("accel: rank {} of {}: MASTER_PORT is not set; the ranks meet on port {}. Set "
           "MASTER_PORT, or start them "
           "with accel-launch",
           ranks.rank, ranks.size, ranks.master_port);
  }

  std::optional<std::string> address() {
    for (const char* name : {"MASTER_ADDR", "ACCEL_MAIN_PROCESS_IP"}) {
      const auto value = environment_(name);
      if (value && value->empty())
        fail(ErrorCategory::config, "accel: {} is empty; set it to the host of rank 0, or unset it",
             name);
      if (value) return value;
    }
    return std::nullopt;
  }

  std::optional<int> port() {
    for (const char* name : {"MASTER_PORT", "ACCEL_MAIN_PROCESS_PORT"})
      if (const auto value = number(name, 1, 65535)) return value;
    return std::nullopt;
  }

  /// PMIx names every job; ports from its name lie below those that the system hands out.
  int default_port() {
    const auto job = environment_("PMIX_NAMESPACE");
    if (!job) return default_master_port;
    std::uint32_t hash =
        2166136261U;  // FNV-1a: the same on every rank, whatever the standard library
    for (const char letter : *job) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
    return static_cast<int>(20000 + hash % 10000);
  }

  /// No launcher gave a rank. Says so where something else suggests that there was one.
  void warn_of_leftovers() {
    for (const auto& names : known_launchers) {
      const auto size = environment_(names.size);
      if (!size || *size == "1") continue;
      warn("accel: {} is {}, but {} is not set: this is a job of one process. Start it with "
           "accel-launch "
           "--num_processes {}, or unset {}",
           names.size, *size, names.rank, *size, names.size);
      return;
    }
    for (const char* name : {"MASTER_PORT", "MASTER_ADDR"}) {
      const auto value = environment_(name);
      if (!value) continue;
      warn("accel: {} is {}, but RANK is not set: this is a job of one process. `accelerate launch "
           "--cpu` starts one "
           "process, whatever its --num_processes; use accel-launch --num_processes N, or "
           "accelerate launch "
           "--multi_gpu. For one process, unset {}",
           name, *value, name);
      return;
    }
    if (const auto local = environment_(torchrun_variables.local_rank)) {
      warn("accel: LOCAL_RANK is {}, but RANK is not set: this is a job of one process. Set RANK "
           "and WORLD_SIZE too, "
           "or unset LOCAL_RANK",
           *local);
      return;
    }
    // SLURM_PROCID does not tell: a batch script has one too. The tasks of a step do.
    if (const auto tasks = environment_("SLURM_STEP_NUM_TASKS"); tasks && *tasks != "1")
      warn("accel: srun started {} tasks (SLURM_STEP_NUM_TASKS), but RANK is not set: each is a "
           "job of one process. Use "
           "srun --mpi=pmi2, or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR "
           "in each task",
           *tasks);
  }

  /// A whole number within bounds; nullopt if the variable is unset.
  std::optional<int> number(const char* name, int least, int most) {
    const auto text = environment_(name);
    if (!text) return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error == std::errc() && end == text->data() + text->size() && value >= least &&
        value <= most)
      return value;
    if (most == std::numeric_limits<int>::max())
      fail(ErrorCategory::config,
           "accel: {} is '{}', but it must be a whole number, at least {}; correct it, or unset it",
           name, *text, least);
    fail(ErrorCategory::config,
         "accel: {} is '{}', but it must be a whole number from {} to {}; correct it, or unset it",
         name, *text, least, most);
  }

  template <class... Arguments>
  void warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (warn_) warn_(fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  const EnvironmentLookup& environment_;
  const std::function<void(const std::string&)>& warn_;
};

}  // namespace

Ranks discover_ranks(const EnvironmentLookup& environment,
                     const std::function<void(const std::string&)>& warn) {
  return Discovery(environment, warn).run();
}

}  // namespace accel
