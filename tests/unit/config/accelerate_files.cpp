// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Files as Hugging Face Accelerate 1.15 writes them, and as older ones did.
#include <accel/config/yaml.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <vector>

namespace {

using accel::DistributedType;
using accel::MixedPrecision;
using accel::parse_config;
using Names = std::vector<std::string>;

TEST_CASE("`accelerate config default` writes JSON into default_config.yaml") {
  const auto config = parse_config(R"({
  "compute_environment": "LOCAL_MACHINE",
  "debug": false,
  "distributed_type": "NO",
  "downcast_bf16": false,
  "enable_cpu_affinity": false,
  "machine_rank": 0,
  "main_training_function": "main",
  "mixed_precision": "no",
  "num_machines": 1,
  "num_processes": 1,
  "rdzv_backend": "static",
  "same_network": false,
  "tpu_use_cluster": false,
  "tpu_use_sudo": false,
  "use_cpu": true
}
)",
                                   "default_config.yaml");
  accel::Config expected;
  expected.distributed_type = DistributedType::no;
  expected.use_cpu = true;
  CHECK(config == expected);
}

TEST_CASE("the questionnaire's file for several GPUs") {
  const auto config = parse_config(R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: true
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)",
                                   "a.yaml");
  accel::Config expected;
  expected.distributed_type = DistributedType::multi_gpu;
  expected.enable_cpu_affinity = true;
  expected.gpu_ids = "all";
  expected.mixed_precision = MixedPrecision::bf16;
  expected.num_processes = 8;
  expected.same_network = true;
  CHECK(config == expected);
}

TEST_CASE("FSDP version 2 with a mesh") {
  const auto config = parse_config(R"(distributed_type: FSDP
num_processes: 8
num_machines: 1
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: BertLayer,BertEmbeddings
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_offload_params: true
  fsdp_cpu_ram_efficient_loading: true
  fsdp_activation_checkpointing: true
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
)",
                                   "fsdp.yaml");
  CHECK(config.distributed_type == DistributedType::fsdp);
  CHECK(config.fsdp.version == 2);
  CHECK_FALSE(config.fsdp.reshard_after_forward);
  CHECK(config.fsdp.auto_wrap_policy == accel::WrapPolicy::transformer_based_wrap);
  CHECK(config.fsdp.transformer_layer_cls_to_wrap == Names{"BertLayer", "BertEmbeddings"});
  CHECK(config.fsdp.state_dict_type == "SHARDED_STATE_DICT");
  CHECK(config.fsdp.offload_params);
  CHECK(config.fsdp.activation_checkpointing);
  CHECK(config.parallelism.dp_replicate_size == 2);
  CHECK(config.parallelism.dp_shard_size == 4);
}

TEST_CASE("the questionnaire's file for FSDP version 1 names the strategy under the newer key") {
  const auto config = parse_config(R"(distributed_type: FSDP
num_processes: 4
fsdp_config:
  fsdp_version: 1
  fsdp_reshard_after_forward: HYBRID_SHARD_ZERO2
  fsdp_auto_wrap_policy: SIZE_BASED_WRAP
  fsdp_min_num_params: 2000
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: false
  fsdp_use_orig_params: true
  fsdp_sync_module_states: true
  fsdp_state_dict_type: FULL_STATE_DICT
)",
                                   "fsdp1.yaml");
  CHECK(config.fsdp.version == 1);
  CHECK(config.fsdp.sharding_strategy == accel::ShardingStrategy::hybrid_shard_zero2);
  CHECK(config.fsdp.reshard_after_forward);
  CHECK(config.fsdp.auto_wrap_policy == accel::WrapPolicy::size_based_wrap);
  CHECK(config.fsdp.min_num_params == 2000);
  CHECK(config.fsdp.backward_prefetch == "BACKWARD_PRE");
}

TEST_CASE("older files: keys without their prefix, numbers for names, nulls and empty sections") {
  const auto config = parse_config(R"(command_file: null
commands: null
compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: FSDP
downcast_bf16: 'no'
dynamo_backend: 'NO'
fp16: true
fsdp_config:
  backward_prefetch_policy: BACKWARD_POST
  min_num_params: 1000
  offload_params: false
  sharding_strategy: 2
gpu_ids: null
main_process_ip: null
main_process_port: null
megatron_lm_config: {}
num_machines: 1
num_processes: 2
tpu_name: null
tpu_zone: null
)",
                                   "old.yaml");
  CHECK(config.mixed_precision == MixedPrecision::fp16);
  CHECK(config.fsdp.sharding_strategy == accel::ShardingStrategy::shard_grad_op);
  CHECK(config.fsdp.min_num_params == 1000);
  CHECK(config.fsdp.backward_prefetch == "BACKWARD_POST");
  CHECK_FALSE(config.main_process_ip);
  CHECK(config.foreign.empty());
}

TEST_CASE("several machines, and keys that mean nothing here are kept") {
  const auto config = parse_config(R"(distributed_type: MULTI_GPU
num_machines: 4
machine_rank: 2
num_processes: 32
gpu_ids: all
main_process_ip: 192.168.7.10
main_process_port: 29400
rdzv_backend: c10d
same_network: false
mixed_precision: fp16
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default}
fp8_config:
  backend: TE
  margin: 0
  override_linear_precision: [false, no, true]
debug: true
)",
                                   "multinode.yaml");
  CHECK(config.main_process_ip == "192.168.7.10");
  CHECK(config.main_process_port == 29400);
  CHECK(config.rdzv_backend == "c10d");
  CHECK(config.foreign.at("dynamo_config") ==
        R"({"dynamo_backend":"INDUCTOR","dynamo_mode":"default"})");
  CHECK(config.foreign.at("fp8_config") ==
        R"({"backend":"TE","margin":0,"override_linear_precision":[false,false,true]})");
  CHECK(parse_config(accel::to_yaml(config), "b.yaml") == config);
}

TEST_CASE("DeepSpeed with its own file, and without") {
  const auto with = parse_config(R"(distributed_type: DEEPSPEED
num_processes: 4
main_process_port: 29700
deepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: true}
)",
                                 "ds.yaml");
  CHECK(with.deepspeed.config_file == "ds.json");
  CHECK(with.deepspeed.zero3_init_flag);
  const auto without = parse_config(R"(distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: cpu
  offload_param_device: none
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  zero3_save_16bit_model: true
)",
                                    "ds.yaml");
  CHECK(without.deepspeed.zero_stage == 3);
  CHECK(without.deepspeed.offload_optimizer_device == accel::OffloadDevice::cpu);
  CHECK(without.deepspeed.gradient_accumulation_steps == 4);
  CHECK(without.deepspeed.gradient_clipping == 1.0);
}

TEST_CASE("mpirun over several CPU machines") {
  const auto config = parse_config(R"(distributed_type: MULTI_CPU
use_cpu: true
num_machines: 2
machine_rank: 0
num_processes: 8
main_process_ip: 10.0.0.1
main_process_port: 29500
mixed_precision: bf16
mpirun_config: {mpirun_hostfile: /etc/acc/hostfile}
)",
                                   "ddp_cpu.yaml");
  CHECK(config.distributed_type == DistributedType::multi_cpu);
  CHECK(config.mpirun_hostfile == "/etc/acc/hostfile");
}

TEST_CASE("words that YAML 1.1 takes for truth values are still names of choices") {
  const auto config =
      parse_config("distributed_type: NO\nmixed_precision: no\nuse_cpu: yes\ndebug: 'off'\n", "a");
  CHECK(config.distributed_type == DistributedType::no);
  CHECK(config.mixed_precision == MixedPrecision::no);
  CHECK(config.use_cpu);
  CHECK_FALSE(config.debug);
}

TEST_CASE("an empty file is the default; a list is as good as commas") {
  CHECK(parse_config("", "a.yaml") == accel::Config{});
  CHECK(parse_config("# nothing\n", "a.yaml") == accel::Config{});
  CHECK(parse_config("{}", "a.json") == accel::Config{});
  const auto config =
      parse_config("fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: [A, my::B]\n", "a.yaml");
  CHECK(config.fsdp.transformer_layer_cls_to_wrap == Names{"A", "my::B"});
}

TEST_CASE("anchors, block texts and document marks are read as YAML has them") {
  const auto config = parse_config(
      "%YAML 1.1\n---\nmixed_precision: &p bf16\nmain_process_ip: *p\n"
      "main_training_function: |-\n  a\n  b\ntpu_env: &e [x, {y: 1}]\ncommands: [*e, *e]\n...\n",
      "a.yaml");
  CHECK(config.mixed_precision == MixedPrecision::bf16);
  CHECK(config.main_process_ip == "bf16");
  CHECK(config.main_training_function == "a\nb");
  CHECK(config.foreign.at("commands") == R"([["x",{"y":1}],["x",{"y":1}]])");
  CHECK(parse_config(accel::to_yaml(config), "b.yaml") == config);
}

}  // namespace
