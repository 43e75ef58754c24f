// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/config_of.hpp.
#include <accel/config/config_of.hpp>
#include <accel/config/expression.hpp>
#include <accel/config/validate.hpp>
#include <accel/config/wording.hpp>
#include <accel/detail/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace accel {
namespace {

using detail::Expression;
using Type = DistributedType;

[[noreturn]] void refuse(std::string_view axis, const Expression& spelled,
                         std::span<const std::string_view> known) {
  detail::fail(ErrorCategory::config, "{}: this is no {} policy; use one of {}",
               detail::in_quotes(detail::to_text(spelled)), axis, fmt::join(known, ", "));
}

// FSDP's names, as in policy/backend.hpp.
Expression without_alias(Expression backend) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> aliases{{
      {"full_shard", "sharded<zero3>"},
      {"shard_grad_op", "sharded<fsdp_zero2>"},
      {"hybrid_shard", "sharded<hybrid<zero3>>"},
      {"hybrid_shard_zero2", "sharded<hybrid<fsdp_zero2>>"},
      {"no_shard", "ddp"},
  }};
  for (const auto& [alias, meaning] : aliases) {
    if (backend.name == alias && backend.arguments.empty())
      return detail::parse_expression(meaning);
  }
  return backend;
}

// recomputed<> has a default argument.
Expression with_default_units(Expression placement) {
  for (auto& extra : placement.arguments) {
    if (extra.name == "recomputed" && extra.arguments.empty()) {
      extra.arguments.push_back({"wrap_auto", {}});
    }
  }
  return placement;
}

bool set_units(const Expression& units, FsdpConfig& fsdp) {
  if (units.name == "wrap_auto" && units.arguments.empty()) return true;
  if (units.name == "wrap_by_size" && units.arguments.empty()) {
    fsdp.auto_wrap_policy = WrapPolicy::size_based_wrap;
    return true;
  }
  if (units.name != "wrap" || units.arguments.empty()) return false;
  fsdp.auto_wrap_policy = WrapPolicy::transformer_based_wrap;
  for (const auto& module : units.arguments) {
    fsdp.transformer_layer_cls_to_wrap.push_back(detail::to_text(module));
  }
  return true;
}

// FSDP where it can say it; else DeepSpeed, whose offloading has the finer choice.
bool set_sharded(const Expression& backend, bool finer_offload, Config& config) {
  if (backend.arguments.empty() || backend.arguments.size() > 2) return false;
  if (backend.arguments.size() == 2 && !set_units(backend.arguments[1], config.fsdp)) return false;
  const Expression& outer = backend.arguments[0];
  const bool in_groups = outer.name == "hybrid" && outer.arguments.size() == 1;
  const Expression& stage = in_groups ? outer.arguments[0] : outer;
  if (!stage.arguments.empty()) return false;

  const bool keeps = stage.name == "fsdp_zero2";
  if (keeps || (stage.name == "zero3" && !finer_offload)) {
    config.distributed_type = Type::fsdp;
    config.fsdp.reshard_after_forward = !keeps;
    if (!in_groups) return true;
    config.fsdp.version = 1;
    config.fsdp.reshard_after_forward = true;
    config.fsdp.sharding_strategy =
        keeps ? ShardingStrategy::hybrid_shard_zero2 : ShardingStrategy::hybrid_shard;
    return true;
  }
  constexpr std::array<std::string_view, 3> stages{"zero1", "zero2", "zero3"};
  const auto found = std::ranges::find(stages, stage.name);
  if (found == stages.end()) return false;
  config.distributed_type = Type::deepspeed;
  config.deepspeed.zero_stage = static_cast<int>(found - stages.begin()) + 1;
  if (in_groups) {
    config.parallelism.dp_replicate_size = 2;
    config.parallelism.dp_shard_size = 2;
    config.num_processes = 4;
  }
  return true;
}

void set_backend(const Expression& backend, bool finer_offload, Config& config) {
  constexpr std::array<std::string_view, 4> known{"single", "ddp", "sharded<Stage, Units>", "xla"};
  if (backend.name == "sharded" && set_sharded(backend, finer_offload, config)) return;
  if (!backend.arguments.empty() || backend.name == "sharded") refuse("backend", backend, known);
  if (backend.name == "single") {
    config.distributed_type = Type::no;
  } else if (backend.name == "xla") {
    config.distributed_type = Type::xla;
  } else if (backend.name == "ddp") {
    config.num_processes = 2;  // the type follows from the device
  } else {
    refuse("backend", backend, known);
  }
}

void set_precision(const Expression& precision, Config& config) {
  constexpr std::array<std::string_view, 5> known{"fp32", "bf16", "fp16", "bf16_true",
                                                  "with_masters<bf16_true>"};
  const auto spelled = detail::to_text(precision);
  if (std::ranges::find(known, spelled) == known.end()) refuse("precision", precision, known);
  config.master_weights = spelled == known.back();
  const auto& names = spellings<MixedPrecision>;
  const auto found = std::ranges::find(names, config.master_weights ? "bf16_true" : spelled);
  config.mixed_precision = found == names.end()
                               ? MixedPrecision::no
                               : static_cast<MixedPrecision>(found - names.begin());
}

void set_accumulation(const Expression& accumulation, Config& config) {
  constexpr std::array<std::string_view, 2> known{"accumulate<N>", "accumulate<dynamic>"};
  const bool whole = accumulation.name == "accumulate" && accumulation.arguments.size() == 1 &&
                     accumulation.arguments[0].arguments.empty();
  if (!whole) refuse("accumulation", accumulation, known);
  const auto& steps = accumulation.arguments[0].name;
  if (steps == "dynamic") {
    config.gradient_accumulation_dynamic = true;
    return;
  }
  const auto* const end = steps.data() + steps.size();
  const auto [stop, error] = std::from_chars(steps.data(), end, config.gradient_accumulation_steps);
  if (stop != end || error != std::errc() || config.gradient_accumulation_steps < 1) {
    refuse("accumulation", accumulation, known);
  }
}

// What on<Device, Extras...> says.
struct Placement {
  std::string device;
  bool state = false;
  bool parameters = false;
  bool activations = false;
  std::optional<Expression> recomputed;
};

bool add_extra(const Expression& extra, Placement& placement) {
  if (extra.name == "recomputed" && extra.arguments.size() == 1 && !placement.recomputed) {
    placement.recomputed = extra.arguments[0];
    return true;
  }
  const bool known = placement.state || placement.parameters || placement.activations;
  if (extra.name != "offload" || extra.arguments.empty() || known) return false;
  for (const auto& part : extra.arguments) {
    if (part.name == "optimizer_state") {
      placement.state = true;
    } else if (part.name == "parameters") {
      placement.parameters = true;
    } else if (part.name == "activations") {
      placement.activations = true;
    } else {
      return false;
    }
  }
  return placement.state || !placement.parameters;
}

Placement parse_placement(const Expression& placement) {
  constexpr std::array<std::string_view, 4> known{"on<automatic, Extras...>", "on<cpu, Extras...>",
                                                  "on<cuda, Extras...>",
                                                  "on<xla_device, Extras...>"};
  constexpr std::array<std::string_view, 4> devices{"automatic", "cpu", "cuda", "xla_device"};
  if (placement.name != "on" || placement.arguments.empty()) refuse("placement", placement, known);
  Placement result;
  result.device = detail::to_text(placement.arguments[0]);
  if (std::ranges::find(devices, result.device) == devices.end())
    refuse("placement", placement, known);
  for (const auto& extra : std::span(placement.arguments).subspan(1)) {
    if (!add_extra(extra, result)) refuse("placement", placement, known);
  }
  return result;
}

void set_placement(const Placement& placement, Config& config) {
  const bool ddp = !config.distributed_type;
  if (placement.device == "cpu") {
    config.use_cpu = true;
    if (ddp) config.distributed_type = Type::multi_cpu;
  } else if (placement.device == "cuda") {
    if (ddp) {
      config.distributed_type = Type::multi_gpu;
    } else {
      config.gpu_ids = "all";
    }
  }
  if (config.distributed_type == Type::fsdp) config.fsdp.offload_params = placement.parameters;
  if (config.distributed_type == Type::deepspeed) {
    const auto device = [](bool offloads) {
      return offloads ? OffloadDevice::cpu : OffloadDevice::none;
    };
    config.deepspeed.offload_optimizer_device = device(placement.state);
    config.deepspeed.offload_param_device = device(placement.parameters);
  }
  config.activation_offload = placement.activations;
  if (placement.recomputed) {
    config.activation_checkpointing = true;
    if (config.fsdp.transformer_layer_cls_to_wrap.empty() && !config.fsdp.auto_wrap_policy) {
      set_units(*placement.recomputed, config.fsdp);
    }
  }
}

}  // namespace

Config config_of(const PolicyNames& names) {
  const PolicyNames canonical{
      detail::to_text(without_alias(detail::parse_expression(names.backend))),
      detail::to_text(detail::parse_expression(names.precision)),
      detail::to_text(detail::parse_expression(names.accumulation)),
      detail::to_text(with_default_units(detail::parse_expression(names.placement)))};
  const auto placement = parse_placement(detail::parse_expression(canonical.placement));
  Config config;
  set_backend(detail::parse_expression(canonical.backend), placement.state && !placement.parameters,
              config);
  set_precision(detail::parse_expression(canonical.precision), config);
  set_accumulation(detail::parse_expression(canonical.accumulation), config);
  set_placement(placement, config);
  // What a configuration has no key for (an offload that this backend does not do, units of
  // recomputation other than those of the backend) shows as a difference here, and is not silently
  // left out.
  validate(config, to_text(canonical));
  const auto meant = policy_names(config);
  if (meant != canonical) {
    detail::fail(ErrorCategory::config, "no configuration means {}; the nearest one means {}",
                 to_text(canonical), to_text(meant));
  }
  return config;
}

}  // namespace accel
