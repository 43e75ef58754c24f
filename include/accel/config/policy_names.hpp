// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// From a configuration to the four policies it means, as they are spelled (each policy's `name`),
// and back. The shim (runtime.hpp) compares the spellings with those of its precompiled rows,
// policy_header.hpp writes them into C++. Owns the meaning of a configuration; the policies
// themselves are in policy/.
//
//   NO                      single
//   MULTI_CPU, MULTI_GPU    ddp, on<cpu> and on<cuda>
//   FSDP                    sharded<zero3>
//                           without reshard_after_forward (or SHARD_GRAD_OP): sharded<fsdp_zero2>
//                           with replicas: sharded<hybrid<...>>; with NO_SHARD: ddp
//   DEEPSPEED               sharded<zero1>, sharded<zero2>, sharded<zero3> by zero_stage; ddp for 0
//   XLA                     xla, on<xla_device>
//   not set                 single for one process, ddp for several
#pragma once

#include <accel/config/config.hpp>

#include <string>
#include <string_view>

namespace accel {

/// One spelling an axis: "sharded<zero3>", "bf16", "accumulate<4>", "on<cpu>". The default is that
/// of Accelerator.
struct PolicyNames {
  std::string backend = "single";
  std::string precision = "fp32";
  std::string accumulation = "accumulate<1>";
  std::string placement = "on<automatic>";

  bool operator==(const PolicyNames&) const = default;
};

/// "Accelerator<single, fp32, accumulate<1>, on<automatic>>", for messages.
std::string to_text(const PolicyNames& names);

/// What the configuration means. Throws Error(config) with all broken rules if it does not pass
/// validate().
PolicyNames policy_names(const Config& config);

/// Micro-batches of one optimizer step, wherever the configuration says it.
std::int64_t accumulation_steps(const Config& config);

}  // namespace accel
