// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The values of a configuration, with the names and meanings of Hugging Face Accelerate's keys, so
// that one file serves both. Owns the values and their defaults; keys.hpp describes each of them
// (help, range, variables, flag), yaml.hpp reads and writes files, merge.hpp joins the sources,
// validate.hpp has the rules between keys, and policy_names.hpp turns the whole into policies.
#pragma once

#include <accel/config/choices.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accel {

/// The section fsdp_config: used with DistributedType::fsdp. Its units are also those of other
/// shardings and of activation checkpointing.
struct FsdpConfig {
  int version = 2;
  bool reshard_after_forward = true;
  std::optional<ShardingStrategy> sharding_strategy;  ///< the older form; if set, it decides
  bool offload_params = false;
  std::optional<WrapPolicy> auto_wrap_policy;
  std::vector<std::string>
      transformer_layer_cls_to_wrap;  ///< C++ class names, as `BlockImpl` or `my::BlockImpl`
  std::int64_t min_num_params = 100'000'000;
  std::optional<std::string> backward_prefetch;
  std::optional<std::string> state_dict_type;
  bool forward_prefetch = false;
  bool use_orig_params = true;
  bool cpu_ram_efficient_loading = true;
  bool sync_module_states = true;
  bool activation_checkpointing = false;
  bool activation_checkpointing_offload = false;
  std::optional<std::string> ignored_modules;

  bool operator==(const FsdpConfig&) const = default;
};

/// The section deepspeed_config: used with DistributedType::deepspeed.
struct DeepSpeedConfig {
  int zero_stage = 2;
  OffloadDevice offload_optimizer_device = OffloadDevice::none;
  OffloadDevice offload_param_device = OffloadDevice::none;
  std::optional<std::string> offload_optimizer_nvme_path;
  std::optional<std::string> offload_param_nvme_path;
  std::optional<std::int64_t> gradient_accumulation_steps;  ///< stands for the key of the top level
  std::optional<double> gradient_clipping;
  bool zero3_init_flag = false;
  bool zero3_save_16bit_model = false;
  std::optional<std::string> config_file;
  std::optional<std::string> moe_layer_cls_names;
  std::optional<std::string> multinode_launcher;
  std::optional<std::string> hostfile;
  std::optional<std::string> exclusion_filter;
  std::optional<std::string> inclusion_filter;

  bool operator==(const DeepSpeedConfig&) const = default;
};

/// The section parallelism_config: sizes of a mesh of processes, used where something is sharded.
struct ParallelismConfig {
  int dp_replicate_size = 1;
  int dp_shard_size = 1;
  int tp_size = 1;
  int cp_size = 1;
  int sp_size = 1;
  std::optional<std::string> cp_backend;
  std::optional<std::string> cp_comm_strategy;
  std::optional<std::string> sp_backend;
  std::optional<std::int64_t> sp_seq_length;
  std::optional<bool> sp_seq_length_is_variable;
  std::optional<std::string> sp_attn_implementation;

  bool operator==(const ParallelismConfig&) const = default;
};

/// A whole configuration. The default is one process in fp32, on the GPU if the machine has one.
struct Config {
  std::string compute_environment = "LOCAL_MACHINE";
  std::optional<DistributedType>
      distributed_type;  ///< unset: one process is `single`, several are `ddp`
  MixedPrecision mixed_precision = MixedPrecision::no;
  bool master_weights = false;  ///< fp32 copies of 16-bit parameters in the optimizer
  bool use_cpu = false;
  std::optional<std::string> gpu_ids;

  int num_processes = 1;  ///< over all machines
  int num_machines = 1;
  int machine_rank = 0;
  std::optional<std::string> main_process_ip;
  std::optional<int> main_process_port;
  std::string rdzv_backend = "static";
  bool same_network = false;
  std::optional<int> num_cpu_threads_per_process;
  bool enable_cpu_affinity = false;
  std::optional<std::string> mpirun_hostfile;

  std::int64_t gradient_accumulation_steps = 1;
  bool gradient_accumulation_dynamic =
      false;  ///< the count stays a run-time value, out of the type

  // FSDP has its own keys for these; either is enough.
  bool activation_checkpointing = false;
  bool activation_offload = false;
  bool debug = false;
  bool downcast_bf16 = false;
  std::string main_training_function = "main";

  FsdpConfig fsdp;
  DeepSpeedConfig deepspeed;
  ParallelismConfig parallelism;

  /// Keys that Accelerate knows and that mean nothing to a C++ program (dynamo_config, tpu_name,
  /// ...), with their values as JSON text: read and written back, so that rewriting a file that
  /// Python uses too loses nothing.
  std::map<std::string, std::string> foreign;

  bool operator==(const Config&) const = default;
};

}  // namespace accel
