// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a program may set at run time. Comes before context.hpp, which keeps it.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/engine/ddp.hpp>
#include <accel/engine/grad_scaler.hpp>
#include <accel/engine/offload_file.hpp>
#include <accel/engine/sharded/sharded_parallel.hpp>
#include <accel/track/trackers.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace accel {

/// Run-time values of an accelerator. What is structure is a policy; what is a number is here.
struct AcceleratorOptions {
  int64_t gradient_accumulation_steps = 1;  ///< for accumulate<dynamic>
  bool allow_uneven_batches = false;  ///< loaders whose ranks get different numbers of batches
  bool sync_with_dataloader = true;   ///< the end of a loader closes the window
  bool sync_each_batch = false;       ///< ddp: reduce in every micro-batch, not once a window
  /// Of ranks that draw the same random numbers when a model is prepared, all but rank 0 are seeded
  /// anew (seed + rank), so that dropout differs. false: Accelerate's way, one mask for all.
  bool seed_per_rank = true;
  bool device_placement = true;  ///< prepare moves models and batches to the device
  int device_index = -1;         ///< of several CUDA devices; -1: the local rank's
  bool step_scheduler_with_optimizer =
      true;  ///< schedules step when the optimizer does, not at each call
  /// Accelerate's rule: as many schedule steps as processes, but one where a loader has
  /// split_batches, whose batches do not grow with the job.
  bool step_scheduler_once_per_process = false;
  DdpOptions ddp{};  ///< comm_hook and sync_batch_norm are those of sharded<...> too
  ShardedOptions sharded{};
  OffloadOptions offload{};
  GradScalerOptions grad_scaler{};
  CommunicatorOptions communicator{};
  std::string project_dir{};  ///< where trackers write
  std::vector<TrackerChoice>
      log_with{};  ///< "json_lines", "tensorboard", "all", or trackers of your own
};

}  // namespace accel
