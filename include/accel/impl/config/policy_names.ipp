// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/policy_names.hpp.
#include <accel/config/policy_names.hpp>
#include <accel/config/expression.hpp>
#include <accel/config/validate.hpp>
#include <accel/config/wording.hpp>
#include <accel/detail/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <span>
#include <utility>

namespace accel {
namespace {

using detail::Expression;
using detail::fail;
using Type = DistributedType;

// ---- configuration -> names ----

Type effective_type(const Config& config) {
  if (config.distributed_type) return *config.distributed_type;
  if (config.num_processes == 1) return Type::no;
  return config.use_cpu ? Type::multi_cpu : Type::multi_gpu;
}

std::string units_of(const Config& config) {
  const auto& fsdp = config.fsdp;
  if (!fsdp.transformer_layer_cls_to_wrap.empty()) {
    return fmt::format("wrap<{}>", fmt::join(fsdp.transformer_layer_cls_to_wrap, ", "));
  }
  return fsdp.auto_wrap_policy == WrapPolicy::size_based_wrap ? "wrap_by_size" : "wrap_auto";
}

std::string sharded_of(const Config& config, const std::string& stage, bool in_groups) {
  const auto units = units_of(config);
  return fmt::format("sharded<{}{}>", in_groups ? "hybrid<" + stage + ">" : stage,
                     units == "wrap_auto" ? "" : ", " + units);
}

std::string fsdp_backend(const Config& config) {
  using Strategy = ShardingStrategy;
  const auto strategy = config.fsdp.sharding_strategy.value_or(
      config.fsdp.reshard_after_forward ? Strategy::full_shard : Strategy::shard_grad_op);
  if (strategy == Strategy::no_shard) return "ddp";
  const bool keeps =
      strategy == Strategy::shard_grad_op || strategy == Strategy::hybrid_shard_zero2;
  const bool in_groups = strategy == Strategy::hybrid_shard ||
                         strategy == Strategy::hybrid_shard_zero2 ||
                         config.parallelism.dp_replicate_size > 1;
  return sharded_of(config, keeps ? "fsdp_zero2" : "zero3", in_groups);
}

std::string backend_of(const Config& config) {
  switch (effective_type(config)) {
    case Type::no: return "single";
    case Type::multi_cpu:
    case Type::multi_gpu: return "ddp";
    case Type::fsdp: return fsdp_backend(config);
    case Type::deepspeed: {
      const int stage = config.deepspeed.zero_stage;
      if (stage == 0) return "ddp";
      return sharded_of(config, fmt::format("zero{}", stage),
                        config.parallelism.dp_replicate_size > 1);
    }
    case Type::xla: break;
  }
  return "xla";
}

std::string precision_of(const Config& config) {
  if (config.mixed_precision == MixedPrecision::no) return "fp32";
  const std::string name(spelling(config.mixed_precision));
  return config.master_weights ? "with_masters<" + name + ">" : name;
}

// GPUs that are named, or a type that is for GPUs, leave nothing to decide when the program starts.
std::string device_of(const Config& config) {
  if (config.distributed_type == Type::xla) return "xla_device";
  if (config.use_cpu || config.distributed_type == Type::multi_cpu) return "cpu";
  if (config.gpu_ids || config.distributed_type == Type::multi_gpu) return "cuda";
  return "automatic";
}

std::string offload_of(const Config& config) {
  const auto& deepspeed = config.deepspeed;
  const bool fsdp = config.distributed_type == Type::fsdp && config.fsdp.offload_params;
  const bool with_deepspeed = config.distributed_type == Type::deepspeed;
  const bool parameters =
      fsdp || (with_deepspeed && deepspeed.offload_param_device != OffloadDevice::none);
  const bool state =
      fsdp || (with_deepspeed && deepspeed.offload_optimizer_device != OffloadDevice::none);
  if (parameters) return ", offload<optimizer_state, parameters>";
  return state ? ", offload<optimizer_state>" : "";
}

std::string placement_of(const Config& config) {
  const bool recomputes =
      config.activation_checkpointing ||
      (config.distributed_type == Type::fsdp && config.fsdp.activation_checkpointing);
  return fmt::format("on<{}{}{}>", device_of(config), offload_of(config),
                     recomputes ? ", recomputed<" + units_of(config) + ">" : "");
}

// ---- names -> configuration ----

[[noreturn]] void refuse(std::string_view axis, const Expression& spelled,
                         std::span<const std::string_view> known) {
  fail(ErrorCategory::config, "{}: this is no {} policy; use one of {}",
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
  std::optional<Expression> recomputed;
};

bool add_extra(const Expression& extra, Placement& placement) {
  if (extra.name == "recomputed" && extra.arguments.size() == 1 && !placement.recomputed) {
    placement.recomputed = extra.arguments[0];
    return true;
  }
  if (extra.name != "offload" || extra.arguments.empty() || placement.state) return false;
  for (const auto& part : extra.arguments) {
    if (part.name == "optimizer_state") {
      placement.state = true;
    } else if (part.name == "parameters") {
      placement.parameters = true;
    } else {
      return false;
    }
  }
  return placement.state;
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
  if (placement.recomputed) {
    config.activation_checkpointing = true;
    if (config.fsdp.transformer_layer_cls_to_wrap.empty() && !config.fsdp.auto_wrap_policy) {
      set_units(*placement.recomputed, config.fsdp);
    }
  }
}

}  // namespace

std::string to_text(const PolicyNames& names) {
  return fmt::format("Accelerator<{}, {}, {}, {}>", names.backend, names.precision,
                     names.accumulation, names.placement);
}

std::int64_t accumulation_steps(const Config& config) {
  if (config.distributed_type == Type::deepspeed && config.deepspeed.gradient_accumulation_steps) {
    return *config.deepspeed.gradient_accumulation_steps;
  }
  return config.gradient_accumulation_steps;
}

PolicyNames policy_names(const Config& config) {
  validate(config);
  const auto steps = config.gradient_accumulation_dynamic
                         ? std::string("dynamic")
                         : std::to_string(accumulation_steps(config));
  return {backend_of(config), precision_of(config), "accumulate<" + steps + ">",
          placement_of(config)};
}

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
    fail(ErrorCategory::config, "no configuration means {}; the nearest one means {}",
         to_text(canonical), to_text(meant));
  }
  return config;
}

}  // namespace accel
