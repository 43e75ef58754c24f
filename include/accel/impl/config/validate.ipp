// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/validate.hpp.
#include <accel/config/validate.hpp>
#include <accel/config/cpp_name.hpp>
#include <accel/config/keys.hpp>
#include <accel/config/wording.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace accel {
namespace {

using Type = DistributedType;

bool shards(const Config& config) {
  return config.distributed_type == Type::fsdp || config.distributed_type == Type::deepspeed;
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',')
      parts.emplace_back();
    else if (c != ' ')
      parts.back() += c;
  }
  return parts;
}

// What CUDA_VISIBLE_DEVICES takes: a number, or the beginning of a UUID as nvidia-smi -L prints it.
bool names_gpu(const std::string& name) {
  if (name.starts_with("GPU-") || name.starts_with("MIG-")) return true;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && name.size() <= 4 && std::ranges::all_of(name, is_digit);
}

bool has_repeated(std::vector<std::string> names) {
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) != names.end();
}

// One group of rules a function; `fault` takes a format and its arguments.
class Rules {
 public:
  Rules(const Config& config, const std::string& where, Faults& faults)
      : config_(config), where_(where), faults_(faults) {}

  void processes() {
    const auto& c = config_;
    if (c.distributed_type == Type::no && c.num_processes > 1) {
      fault("distributed_type is NO, but num_processes is {}; set distributed_type to MULTI_CPU or "
            "MULTI_GPU, or num_processes to 1",
            c.num_processes);
    }
    if (c.distributed_type == Type::xla && c.num_processes > 1) {
      fault("distributed_type is XLA, which runs in one process, but num_processes is {}; set "
            "num_processes to 1, or distributed_type to MULTI_GPU",
            c.num_processes);
    }
    if (c.num_processes % c.num_machines != 0) {
      fault("num_processes counts all machines, and {} cannot be shared evenly by num_machines: "
            "{}; set num_processes to a multiple of it",
            c.num_processes, c.num_machines);
    }
    if (c.machine_rank >= c.num_machines) {
      fault("machine_rank is {}, but num_machines is {}; set machine_rank to 0 to {}",
            c.machine_rank, c.num_machines, c.num_machines - 1);
    }
    if (c.num_machines > 1 && !c.main_process_ip) {
      fault("num_machines is {}, but nothing says where rank 0 is; set main_process_ip to the "
            "address of the machine with machine_rank 0",
            c.num_machines);
    }
  }

  void devices() {
    const auto& c = config_;
    if (c.use_cpu && c.distributed_type == Type::multi_gpu) {
      fault("distributed_type is MULTI_GPU, but use_cpu is true; set distributed_type to "
            "MULTI_CPU, or use_cpu to false");
    }
    if (c.use_cpu && c.distributed_type == Type::xla) {
      fault("distributed_type is XLA, but use_cpu is true; set use_cpu to false, or "
            "distributed_type to NO");
    }
    if (!c.gpu_ids || *c.gpu_ids == "all") return;
    const auto names = split_at_commas(*c.gpu_ids);
    if (!std::ranges::all_of(names, names_gpu) || has_repeated(names)) {
      fault("gpu_ids is {}, and must be all, or numbers or UUIDs of GPUs with commas between them, "
            "each once; write 0,1",
            detail::in_quotes(*c.gpu_ids));
      return;
    }
    if (c.use_cpu) return;
    const auto ids = static_cast<int>(names.size());
    const int here = c.num_processes / c.num_machines;
    const bool on_gpus = c.distributed_type == Type::multi_gpu || shards(c);
    if (on_gpus && here > ids) {
      fault("gpu_ids names {}, which is fewer than the {} processes of a machine; name more, or "
            "set gpu_ids to all",
            detail::in_quotes(*c.gpu_ids), here);
    }
  }

  void precision() {
    const auto& c = config_;
    if (c.master_weights && c.mixed_precision != MixedPrecision::bf16_true) {
      fault("master_weights needs parameters in bf16, but mixed_precision is {}, which keeps them "
            "in fp32 already; set mixed_precision to bf16_true, or master_weights to false",
            spelling(c.mixed_precision));
    }
    if (c.distributed_type == Type::xla && c.mixed_precision == MixedPrecision::fp16) {
      fault("mixed_precision is fp16, whose loss scaler would cut the graph of XLA in each step; "
            "set mixed_precision to bf16");
    }
  }

  void accumulation() {
    const auto& c = config_;
    const auto deepspeed = c.deepspeed.gradient_accumulation_steps;
    if (deepspeed && c.gradient_accumulation_steps != 1 &&
        *deepspeed != c.gradient_accumulation_steps) {
      fault(
          "gradient_accumulation_steps is {}, but in deepspeed_config it is {}; remove one of them",
          c.gradient_accumulation_steps, *deepspeed);
    }
  }

  void units() {
    const auto& f = config_.fsdp;
    for (const auto& name : f.transformer_layer_cls_to_wrap) {
      if (!detail::is_qualified_name(name)) {
        fault("fsdp_transformer_layer_cls_to_wrap: {} is not the name of a class; write BlockImpl "
              "or my::BlockImpl",
              detail::in_quotes(name));
      }
      if (std::ranges::count(f.transformer_layer_cls_to_wrap, name) > 1) {
        fault("fsdp_transformer_layer_cls_to_wrap names {} twice; name it once",
              detail::in_quotes(name));
      }
    }
    if (!f.transformer_layer_cls_to_wrap.empty() && f.auto_wrap_policy &&
        *f.auto_wrap_policy != WrapPolicy::transformer_based_wrap) {
      fault("fsdp_transformer_layer_cls_to_wrap is set, but fsdp_auto_wrap_policy is {}; set it to "
            "TRANSFORMER_BASED_WRAP, or remove the classes",
            spelling(*f.auto_wrap_policy));
    }
  }

  void recomputation() {
    const auto& c = config_;
    if (c.activation_checkpointing && c.distributed_type == Type::xla) {
      fault("activation_checkpointing is true, but XLA recomputes by itself; set "
            "activation_checkpointing to false, or distributed_type to MULTI_GPU");
    }
    if (c.activation_offload && c.distributed_type == Type::xla) {
      fault("activation_offload is true, but the tensors of an XLA graph stay on its device; set "
            "activation_offload to false, or distributed_type to MULTI_GPU");
    }
    if (c.fsdp.activation_checkpointing_offload && !c.fsdp.activation_checkpointing) {
      fault("fsdp_activation_checkpointing_offload needs saved activations; set "
            "fsdp_activation_checkpointing to true too");
    }
  }

  void fsdp() {
    if (config_.distributed_type != Type::fsdp) return;
    const auto& f = config_.fsdp;
    if (f.sharding_strategy == ShardingStrategy::no_shard && f.offload_params) {
      fault("fsdp_sharding_strategy is NO_SHARD, but fsdp_offload_params is true, and what is "
            "offloaded are shards; set fsdp_sharding_strategy to FULL_SHARD (it works on one "
            "process too), or fsdp_offload_params to false");
    }
  }

  void deepspeed() {
    if (config_.distributed_type != Type::deepspeed) return;
    const auto& d = config_.deepspeed;
    if (d.config_file) {
      fault("deepspeed_config_file names {}, and accel does not read DeepSpeed's own files; write "
            "zero_stage and the offload devices into deepspeed_config",
            detail::in_quotes(*d.config_file));
    }
    for (const auto& [name, device, path] :
         {std::tuple("offload_optimizer", d.offload_optimizer_device,
                     d.offload_optimizer_nvme_path),
          std::tuple("offload_param", d.offload_param_device, d.offload_param_nvme_path)}) {
      if (device == OffloadDevice::nvme && !path) {
        fault("{}_device is nvme, but nothing says in which folder; set {}_nvme_path to one on a "
              "disk",
              name, name);
      }
    }
    if (d.offload_optimizer_nvme_path && d.offload_param_nvme_path &&
        *d.offload_optimizer_nvme_path != *d.offload_param_nvme_path) {
      fault(
          "offload_optimizer_nvme_path is {} and offload_param_nvme_path is {}, and accel has one "
          "folder for both; set them to the same",
          detail::in_quotes(*d.offload_optimizer_nvme_path),
          detail::in_quotes(*d.offload_param_nvme_path));
    }
    if (d.offload_param_device != OffloadDevice::none && d.zero_stage < 3) {
      fault("offload_param_device is {}, but zero_stage is {}, which shards no parameters; set "
            "zero_stage to 3, or offload_param_device to none",
            spelling(d.offload_param_device), d.zero_stage);
    }
    if (d.offload_param_device != OffloadDevice::none &&
        d.offload_optimizer_device == OffloadDevice::none) {
      fault("offload_param_device is {}, and the optimizer steps where the parameters are; set "
            "offload_optimizer_device to {} too",
            spelling(d.offload_param_device), spelling(d.offload_param_device));
    }
    if (d.offload_optimizer_device != OffloadDevice::none && d.zero_stage < 1) {
      fault("offload_optimizer_device is {}, but zero_stage is 0, which shards nothing; set "
            "zero_stage to 3 (it works on one process too), or offload_optimizer_device to none",
            spelling(d.offload_optimizer_device));
    }
  }

  void mesh() {
    const auto& p = config_.parallelism;
    for (const auto& [name, size] :
         {std::pair("tp_size", p.tp_size), std::pair("cp_size", p.cp_size),
          std::pair("sp_size", p.sp_size)}) {
      if (size > 1) {
        fault("parallelism_config_{} is {}, and accel splits data and state only; set it to 1",
              name, size);
      }
    }
    if (p.dp_replicate_size == 1 && p.dp_shard_size == 1) return;
    if (!shards(config_)) {
      fault("parallelism_config is set, but distributed_type shards nothing; set distributed_type "
            "to FSDP, or remove parallelism_config");
      return;
    }
    const std::int64_t processes = std::int64_t{p.dp_replicate_size} * p.dp_shard_size;
    if (processes != config_.num_processes) {
      fault("parallelism_config has {} times {} processes, but num_processes is {}; set "
            "num_processes to {}",
            p.dp_replicate_size, p.dp_shard_size, config_.num_processes, processes);
    }
    if (p.dp_shard_size == 1) {
      fault("parallelism_config_dp_shard_size is 1, so that nothing is sharded; set "
            "distributed_type to MULTI_GPU, or share the processes between the two sizes");
    }
    const bool groups = p.dp_replicate_size > 1;
    if (groups && config_.distributed_type == Type::deepspeed && config_.deepspeed.zero_stage < 2) {
      fault("parallelism_config_dp_replicate_size is {}, but zero_stage {} shards no gradients, "
            "and groups would save nothing; set zero_stage to 2 or 3, or dp_replicate_size to 1",
            p.dp_replicate_size, config_.deepspeed.zero_stage);
    }
    if (config_.distributed_type == Type::fsdp &&
        config_.fsdp.sharding_strategy == ShardingStrategy::no_shard) {
      fault("parallelism_config shares out {} processes, but fsdp_sharding_strategy is NO_SHARD; "
            "set it to FULL_SHARD or HYBRID_SHARD, or remove parallelism_config",
            processes);
    }
  }

 private:
  template <class... Arguments>
  void fault(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    faults_.add(where_, format, std::forward<Arguments>(arguments)...);
  }

  const Config& config_;
  const std::string& where_;
  Faults& faults_;
};

// A Config made in C++ has passed no reader. Out-of-range numbers would make nonsense of the rules
// above (num_machines 0).
bool numbers_in_range(const Config& config, const std::string& where, Faults& faults) {
  bool all = true;
  for (const auto& key : config_keys()) {
    const auto value = key.get(config);
    std::string why;
    if (key.kind != KeyKind::integer || !value || parse_value(key, to_text(*value), why)) continue;
    faults.add(where, "{}: {}", key.name, why);
    all = false;
  }
  return all;
}

}  // namespace

void check_rules(const Config& config, const std::string& where, Faults& faults) {
  if (!numbers_in_range(config, where, faults)) return;
  Rules rules(config, where, faults);
  rules.processes();
  rules.devices();
  rules.precision();
  rules.accumulation();
  rules.units();
  rules.recomputation();
  rules.fsdp();
  rules.deepspeed();
  rules.mesh();
}

void validate(const Config& config, const std::string& where) {
  Faults faults;
  check_rules(config, where, faults);
  faults.throw_if_any();
}

}  // namespace accel
