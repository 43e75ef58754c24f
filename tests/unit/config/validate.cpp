// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Each rule between keys: broken it is one sentence, mended as the sentence says it is none.
#include <accel/config/validate.hpp>
#include <accel/config/notes.hpp>
#include <accel/config/yaml.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <string>
#include <vector>

namespace {

using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

std::vector<std::string> faults_of(const std::string& yaml) {
  accel::Faults faults;
  accel::check_rules(accel::parse_config(yaml, "a.yaml"), "a.yaml", faults);
  return faults.sentences();
}

// `bad` breaks one rule, whose sentence begins and ends so; `good` does what the end says.
void check_rule(const std::string& bad, const std::string& begin, const std::string& end,
                const std::string& good) {
  INFO(bad);
  const auto faults = faults_of(bad);
  REQUIRE(faults.size() == 1);
  CHECK_THAT(faults[0], StartsWith("a.yaml: " + begin));
  CHECK_THAT(faults[0], EndsWith(end));
  INFO(good);
  CHECK(faults_of(good).empty());
}

TEST_CASE("processes and machines") {
  check_rule("{distributed_type: 'NO', num_processes: 2}",
             "distributed_type is NO, but num_processes is 2", "or num_processes to 1",
             "{distributed_type: MULTI_CPU, num_processes: 2}");
  check_rule("{distributed_type: XLA, num_processes: 2}",
             "distributed_type is XLA, which runs in one process",
             "or distributed_type to MULTI_GPU", "{distributed_type: XLA, num_processes: 1}");
  check_rule("{num_processes: 3, num_machines: 2, main_process_ip: a}",
             "num_processes counts all machines, and 3", "set num_processes to a multiple of it",
             "{num_processes: 4, num_machines: 2, main_process_ip: a}");
  check_rule("{num_processes: 4, num_machines: 2, machine_rank: 2, main_process_ip: a}",
             "machine_rank is 2, but num_machines is 2", "set machine_rank to 0 to 1",
             "{num_processes: 4, num_machines: 2, machine_rank: 1, main_process_ip: a}");
  check_rule("{num_processes: 4, num_machines: 2}",
             "num_machines is 2, but nothing says where rank 0 is",
             "of the machine with machine_rank 0",
             "{num_processes: 4, num_machines: 2, main_process_ip: a}");
}

TEST_CASE("devices") {
  check_rule("{distributed_type: MULTI_GPU, use_cpu: true}",
             "distributed_type is MULTI_GPU, but use_cpu is true", "or use_cpu to false",
             "{distributed_type: MULTI_CPU, use_cpu: true}");
  check_rule("{distributed_type: XLA, use_cpu: true}",
             "distributed_type is XLA, but use_cpu is true", "or distributed_type to NO",
             "{distributed_type: XLA}");
  check_rule("{distributed_type: MULTI_GPU, num_processes: 3, gpu_ids: '0,1'}",
             "gpu_ids names '0,1'", "or set gpu_ids to all",
             "{distributed_type: MULTI_GPU, num_processes: 3, gpu_ids: all}");
  for (const std::string ids : {"0,", "0,x", "-1", "1,1", "0;1", "12345", "gpu0"})
    check_rule("gpu_ids: '" + ids + "'", "gpu_ids is '" + ids + "', and must be all", "write 0,1",
               "gpu_ids: '0, 1,GPU-8f2c'");
}

TEST_CASE("precision and accumulation") {
  check_rule("{master_weights: true, mixed_precision: bf16}",
             "master_weights needs parameters in bf16",
             "set mixed_precision to bf16_true, or master_weights to false",
             "{master_weights: true, mixed_precision: bf16_true}");
  check_rule("{distributed_type: XLA, mixed_precision: fp16}", "mixed_precision is fp16",
             "set mixed_precision to bf16", "{distributed_type: XLA, mixed_precision: bf16}");
  check_rule("{gradient_accumulation_steps: 2, deepspeed_config: {gradient_accumulation_steps: 3}}",
             "gradient_accumulation_steps is 2, but in deepspeed_config it is 3",
             "remove one of them", "{deepspeed_config: {gradient_accumulation_steps: 3}}");
}

TEST_CASE("units and recomputation") {
  check_rule("fsdp_config: {fsdp_transformer_layer_cls_to_wrap: 'my::'}",
             "fsdp_transformer_layer_cls_to_wrap: 'my::' is not the name of a class",
             "or my::BlockImpl",
             "fsdp_config: {fsdp_transformer_layer_cls_to_wrap: 'my::BlockImpl'}");
  for (const auto* bad : {"1A", "a b", "A<B>", "::A", "a:b", "a::::b", "a-b"}) {
    CHECK(faults_of("fsdp_config: {fsdp_transformer_layer_cls_to_wrap: '" + std::string(bad) + "'}")
              .size() == 1);
  }
  CHECK(faults_of("fsdp_config: {fsdp_transformer_layer_cls_to_wrap: 'A,B,A'}").size() == 2);
  check_rule("fsdp_config: {fsdp_transformer_layer_cls_to_wrap: A, fsdp_auto_wrap_policy: NO_WRAP}",
             "fsdp_transformer_layer_cls_to_wrap is set, but fsdp_auto_wrap_policy is NO_WRAP",
             "or remove the classes",
             "fsdp_config: {fsdp_transformer_layer_cls_to_wrap: A, fsdp_auto_wrap_policy: "
             "TRANSFORMER_BASED_WRAP}");
  check_rule("{distributed_type: XLA, activation_checkpointing: true}",
             "activation_checkpointing is true, but XLA", "or distributed_type to MULTI_GPU",
             "{distributed_type: MULTI_GPU, activation_checkpointing: true}");
  check_rule("{distributed_type: XLA, activation_offload: true}",
             "activation_offload is true, but the tensors of an XLA graph stay",
             "or distributed_type to MULTI_GPU",
             "{distributed_type: MULTI_GPU, activation_offload: true}");
  check_rule("fsdp_config: {fsdp_activation_checkpointing_offload: true}",
             "fsdp_activation_checkpointing_offload needs saved activations",
             "set fsdp_activation_checkpointing to true too",
             "fsdp_config: {fsdp_activation_checkpointing_offload: true, "
             "fsdp_activation_checkpointing: true}");
}

TEST_CASE("FSDP, DeepSpeed and the mesh") {
  check_rule("{distributed_type: FSDP, fsdp_config: {fsdp_sharding_strategy: NO_SHARD, "
             "fsdp_offload_params: true}}",
             "fsdp_sharding_strategy is NO_SHARD", "or fsdp_offload_params to false",
             "{distributed_type: FSDP, fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, "
             "fsdp_offload_params: true}}");
  const auto deepspeed = [](const std::string& keys) {
    return "{distributed_type: DEEPSPEED, deepspeed_config: {" + keys + "}}";
  };
  check_rule(deepspeed("deepspeed_config_file: ds.json"), "deepspeed_config_file names 'ds.json'",
             "into deepspeed_config", deepspeed("zero_stage: 2"));
  check_rule(deepspeed("offload_optimizer_device: nvme"), "offload_optimizer_device is nvme",
             "set offload_optimizer_nvme_path to one on a disk",
             deepspeed("offload_optimizer_device: nvme, offload_optimizer_nvme_path: /data"));
  check_rule(deepspeed("offload_optimizer_nvme_path: /a, offload_param_nvme_path: /b"),
             "offload_optimizer_nvme_path is '/a' and offload_param_nvme_path is '/b'",
             "set them to the same",
             deepspeed("offload_optimizer_nvme_path: /a, offload_param_nvme_path: /a"));
  check_rule(deepspeed("zero_stage: 2, offload_param_device: cpu, offload_optimizer_device: cpu"),
             "offload_param_device is cpu, but zero_stage is 2", "or offload_param_device to none",
             deepspeed("zero_stage: 3, offload_param_device: cpu, offload_optimizer_device: cpu"));
  check_rule(deepspeed("zero_stage: 3, offload_param_device: cpu"),
             "offload_param_device is cpu, and the optimizer",
             "set offload_optimizer_device to cpu too",
             deepspeed("zero_stage: 3, offload_param_device: cpu, offload_optimizer_device: cpu"));
  check_rule(deepspeed("zero_stage: 0, offload_optimizer_device: cpu"),
             "offload_optimizer_device is cpu", "or offload_optimizer_device to none",
             deepspeed("zero_stage: 3, offload_optimizer_device: cpu"));

  const auto mesh = [](const std::string& type, int replicate, int shard, int processes) {
    return "{distributed_type: " + type + ", num_processes: " + std::to_string(processes) +
           ", parallelism_config: {parallelism_config_dp_replicate_size: " +
           std::to_string(replicate) +
           ", parallelism_config_dp_shard_size: " + std::to_string(shard) + "}}";
  };
  check_rule("parallelism_config: {parallelism_config_tp_size: 2}",
             "parallelism_config_tp_size is 2", "set it to 1",
             "parallelism_config: {parallelism_config_tp_size: 1}");
  check_rule(mesh("MULTI_GPU", 2, 2, 4),
             "parallelism_config is set, but distributed_type shards nothing",
             "or remove parallelism_config", mesh("FSDP", 2, 2, 4));
  check_rule(mesh("FSDP", 2, 2, 8), "parallelism_config has 2 times 2 processes",
             "set num_processes to 4", mesh("FSDP", 2, 2, 4));
  check_rule(mesh("FSDP", 4, 1, 4), "parallelism_config_dp_shard_size is 1",
             "between the two sizes", mesh("FSDP", 2, 2, 4));
  check_rule("{distributed_type: DEEPSPEED, num_processes: 4, deepspeed_config: {zero_stage: 1}, "
             "parallelism_config: "
             "{parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 2}}",
             "parallelism_config_dp_replicate_size is 2, but zero_stage 1",
             "or dp_replicate_size to 1", mesh("DEEPSPEED", 2, 2, 4));
  check_rule(
      "{distributed_type: FSDP, num_processes: 4, fsdp_config: {fsdp_sharding_strategy: NO_SHARD}, "
      "parallelism_config: {parallelism_config_dp_shard_size: 4}}",
      "parallelism_config shares out 4 processes, but fsdp_sharding_strategy is NO_SHARD",
      "or remove parallelism_config", mesh("FSDP", 1, 4, 4));
}

TEST_CASE("all broken rules come at once") {
  CHECK(
      faults_of("{distributed_type: 'NO', num_processes: 2, machine_rank: 5, master_weights: true}")
          .size() == 3);
}

TEST_CASE(
    "a Config made in C++ with numbers out of range is refused, and computes nothing with them") {
  accel::Config config;
  config.num_machines = 0;
  config.num_processes = -1;
  accel::Faults faults;
  accel::check_rules(config, "here", faults);
  CHECK(faults.sentences() ==
        std::vector<std::string>{"here: num_processes: '-1' is out of range; write 1 or more",
                                 "here: num_machines: '0' is out of range; write 1 or more"});
  CHECK_THROWS_AS(accel::validate(config), accel::Error);
}

TEST_CASE("a key without effect is noted") {
  const auto notes = [](const std::string& yaml) {
    return accel::config_notes(accel::parse_config(yaml, "a.yaml"));
  };
  CHECK(notes("use_cpu: true").empty());
  CHECK(notes("{same_network: true, dynamo_config: {dynamo_backend: EAGER}}") ==
        std::vector<std::string>{"same_network is kept for Python and has no effect here",
                                 "dynamo_config is kept for Python and has no effect here"});
  CHECK(notes("{distributed_type: MULTI_GPU, fsdp_config: {fsdp_offload_params: true}}").size() ==
        1);
  CHECK(notes("{distributed_type: FSDP, fsdp_config: {fsdp_offload_params: true}}").empty());
  CHECK(notes("{distributed_type: FSDP, fsdp_config: {fsdp_auto_wrap_policy: NO_WRAP}}").size() ==
        1);
}

}  // namespace
