// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Who this process is among the processes of a job, as its launcher said through the environment.
// Needs no LibTorch, and communicates with nobody. Comes before communicator.hpp, which opens the
// connection that this struct describes.
#pragma once

#include <accel/config/environment.hpp>

#include <functional>
#include <optional>
#include <string>

namespace accel {

/// The place of one process in a job. The default is a job of one process.
struct Ranks {
  int rank = 0;        ///< 0 .. size-1, over all hosts
  int size = 1;        ///< processes of the job
  int local_rank = 0;  ///< 0 .. local_size-1, on this host
  int local_size = 1;  ///< processes of the job on this host

  /// Who said so: torchrun, accel-launch, openmpi, mvapich, mpich; none.
  std::string launcher = "none";

  /// Where rank 0 (or the launcher's agent) serves the store. Empty and 0 if size is 1.
  std::string master_addr = {};
  int master_port = 0;

  /// Rank 0 under accel-launch: an inherited socket that listens on master_port.
  std::optional<int> store_fd = std::nullopt;

  bool agent_store = false;  ///< torchrun's agent serves the store already: every rank is a client
  int restart_count = 0;     ///< torchrun's attempt, part of the store's prefix
};

/// Where ranks meet if nothing says otherwise. A job of Open MPI has a port of its own instead,
/// made from the job's number, so that two jobs on one host do not collide.
inline constexpr int default_master_port = 29500;

/// Finds the ranks in the environment; local, no communication. The first of these launchers whose
/// rank is set is believed, by its names of rank, size, local rank and local size:
///
///   - torchrun (accel-launch sets the same): RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
///   - Open MPI: OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK, ..._LOCAL_SIZE
///   - MVAPICH: MV2_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK, ..._LOCAL_SIZE
///   - MPICH, Intel MPI, Slurm's PMI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
///
/// The ranks meet at MASTER_ADDR:MASTER_PORT, else at
/// ACCEL_MAIN_PROCESS_IP:ACCEL_MAIN_PROCESS_PORT, else (a job on one host) at 127.0.0.1 and the
/// default port. Without local numbers, a job whose MASTER_ADDR is a loopback address is on one
/// host, and any other has one process a host.
///
/// `warn` receives one sentence where a launcher's variables are half there (say MASTER_PORT
/// without RANK). Throws Error(config) where a variable is not a number, out of range, or
/// contradicts another.
Ranks discover_ranks(const EnvironmentLookup& environment = process_environment,
                     const std::function<void(const std::string&)>& warn = {});

}  // namespace accel
