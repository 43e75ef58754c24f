// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// From a configuration read at run time to one of the Accelerator types that the program was
// compiled with: one branch, before the loop. The callable is compiled once a row, and inside it
// everything is as if the type had been written there. Comes after accelerator.hpp and config/.
#pragma once

#include <accel/accelerator.hpp>
#include <accel/config/config.hpp>
#include <accel/config/policy_names.hpp>

#include <fmt/ranges.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

/// The run-time values of a configuration. What it says of strategies is in policy_names().
[[nodiscard]] inline AcceleratorOptions accelerator_options(const Config& config) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = accumulation_steps(config);
  options.communicator.debug = config.debug;
  options.sharded.min_num_params = config.fsdp.min_num_params;
  if (config.parallelism.dp_shard_size > 1)
    options.sharded.group_size = config.parallelism.dp_shard_size;
  const auto& deepspeed = config.deepspeed;
  if (const auto& path = deepspeed.offload_optimizer_nvme_path
                             ? deepspeed.offload_optimizer_nvme_path
                             : deepspeed.offload_param_nvme_path)
    options.offload.folder = *path;
  return options;
}

/// The policies of an Accelerator type, spelled.
template <class Accelerator>
struct policies_of;
template <class Backend, class Precision, class Accumulation, class Placement>
struct policies_of<Accelerator<Backend, Precision, Accumulation, Placement>> {
  [[nodiscard]] static PolicyNames names() {
    return {std::string(Backend::name), std::string(Precision::name),
            std::string(Accumulation::name), std::string(Placement::name)};
  }
  /// Whether this type does what was asked for: the same policies, or a number of micro-batches
  /// that it takes at run time.
  [[nodiscard]] static bool serves(const PolicyNames& wanted) {
    const bool counts =
        wanted.accumulation == Accumulation::name ||
        (!Accumulation::is_static && wanted.accumulation.starts_with("accumulate<"));
    return wanted.backend == Backend::name && wanted.precision == Precision::name && counts &&
           wanted.placement == Placement::name;
  }
};

/// Calls `visitor(std::type_identity<A>())` for the first of `Accelerators` that does what is
/// wanted, and returns what it returns. Throws Error(config), listing the types that were compiled,
/// where none does; there is no silent replacement.
///
///     using Plain = accel::Accelerator<accel::single, accel::fp32>;
///     using Many = accel::Accelerator<accel::ddp, accel::bf16>;
///     accel::visit<Plain, Many>(
///         accel::policy_names(config), [&]<class A>(std::type_identity<A>) { train<A>(config); });
template <class... Accelerators, class Visitor>
auto visit(const PolicyNames& wanted, Visitor&& visitor) {
  using Result =
      std::common_type_t<std::invoke_result_t<Visitor&, std::type_identity<Accelerators>>...>;
  const auto run = [&](auto& self, auto row, auto... rest) -> Result {
    using A = typename decltype(row)::type;
    if (policies_of<A>::serves(wanted)) return visitor(std::type_identity<A>());
    if constexpr (sizeof...(rest) > 0) {
      return self(self, rest...);
    } else {
      std::vector<std::string> rows{to_text(policies_of<Accelerators>::names())...};
      detail::fail(ErrorCategory::config,
                   "accel: {} was asked for, and this program was compiled with: {}. Choose one of "
                   "these in the configuration, or add a row to the program's accel::visit",
                   to_text(wanted), fmt::join(rows, ", "));
    }
  };
  return run(run, std::type_identity<Accelerators>()...);
}

}  // namespace accel
