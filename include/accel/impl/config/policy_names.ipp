// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/policy_names.hpp.
#include <accel/config/policy_names.hpp>
#include <accel/config/validate.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

namespace accel {
namespace {

using Type = DistributedType;

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
  std::vector<std::string_view> parts;
  if (state || parameters) parts.emplace_back("optimizer_state");
  if (parameters) parts.emplace_back("parameters");
  if (config.activation_offload ||
      (config.distributed_type == Type::fsdp && config.fsdp.activation_checkpointing_offload))
    parts.emplace_back("activations");
  return parts.empty() ? "" : fmt::format(", offload<{}>", fmt::join(parts, ", "));
}

std::string placement_of(const Config& config) {
  const bool recomputes =
      config.activation_checkpointing ||
      (config.distributed_type == Type::fsdp && config.fsdp.activation_checkpointing);
  return fmt::format("on<{}{}{}>", device_of(config), offload_of(config),
                     recomputes ? ", recomputed<" + units_of(config) + ">" : "");
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

}  // namespace accel
