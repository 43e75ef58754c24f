// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/keys.hpp: the table.
#include <accel/config/keys.hpp>
#include <accel/config/key_of.hpp>

#include <algorithm>
#include <array>
#include <iterator>

namespace accel {
namespace {

using detail::key;

constexpr std::array<std::string_view, 1> environments{"LOCAL_MACHINE"};
constexpr std::array<std::string_view, 3> prefetches{"BACKWARD_PRE", "BACKWARD_POST",
                                                     "NO_PREFETCH"};
constexpr std::array<std::string_view, 3> state_dicts{"FULL_STATE_DICT", "LOCAL_STATE_DICT",
                                                      "SHARDED_STATE_DICT"};

using C = Config;
using F = FsdpConfig;
using D = DeepSpeedConfig;
using P = ParallelismConfig;

constexpr Key table[] = {
    key<&C::compute_environment>("compute_environment", "where the job runs",
                                 {.choices = environments, .always = true, .kept = true}),
    key<&C::distributed_type>("distributed_type", "how the processes work together",
                              {.always = true}),
    key<&C::use_cpu>("use_cpu", "stay on the CPU even if there is a GPU", {.always = true}),
    key<&C::gpu_ids>("gpu_ids", "the GPUs to use, such as 0,1, or all"),
    key<&C::num_processes>("num_processes", "processes of the job, over all machines",
                           {.least = 1, .always = true}),
    key<&C::num_machines>("num_machines", "machines of the job", {.least = 1, .always = true}),
    key<&C::machine_rank>("machine_rank", "which of the machines this one is, from 0",
                          {.always = true}),
    key<&C::main_process_ip>("main_process_ip", "address of the machine of rank 0"),
    key<&C::main_process_port>("main_process_port", "port on that machine; 0 takes a free one",
                               {.most = 65535}),
    key<&C::rdzv_backend>("rdzv_backend", "torchrun's way to find the other machines",
                          {.kept = true}),
    key<&C::same_network>("same_network", "all machines are on one network", {.kept = true}),
    key<&C::num_cpu_threads_per_process>("num_cpu_threads_per_process",
                                         "threads a process; unset shares the cores of the machine",
                                         {.least = 1, .ours = true}),
    key<&C::enable_cpu_affinity>("enable_cpu_affinity",
                                 "bind each process to the cores near its GPU",
                                 {.variables = {"ACCELERATE_CPU_AFFINITY"}, .kept = true}),
    key<&C::mixed_precision>("mixed_precision", "number types of the computation",
                             {.always = true}),
    key<&C::master_weights>("master_weights", "keep fp32 copies of the parameters of bf16_true",
                            {.ours = true}),
    key<&C::gradient_accumulation_steps>("gradient_accumulation_steps",
                                         "micro-batches of one optimizer step",
                                         {.least = 1, .ours = true}),
    key<&C::gradient_accumulation_dynamic>(
        "gradient_accumulation_dynamic",
        "read that number when the program starts, not when it is compiled", {.ours = true}),
    key<&C::activation_checkpointing>(
        "activation_checkpointing",
        "compute activations again in backward, whatever distributed_type is", {.ours = true}),
    key<&C::activation_offload>(
        "activation_offload",
        "keep what backward needs in host memory until then, whatever distributed_type is; on the "
        "CPU in files of AcceleratorOptions::offload.folder",
        {.ours = true}),
    key<&C::debug>("debug", "before each collective, compare what ranks call and from which line",
                   {.variables = {"ACCELERATE_DEBUG_MODE"}, .always = true}),
    key<&C::downcast_bf16>("downcast_bf16", "on a TPU, compute fp32 values in bf16",
                           {.kept = true}),
    key<&C::main_training_function>("main_training_function",
                                    "function that a Python launcher calls", {.kept = true}),

    key<&C::fsdp, &F::version>(
        "fsdp_config.fsdp_version", "FSDP's version, as Accelerate counts",
        {.variables = {"FSDP_VERSION"}, .least = 1, .most = 2, .always = true}),
    key<&C::fsdp, &F::reshard_after_forward>(
        "fsdp_config.fsdp_reshard_after_forward",
        "give gathered parameters back between forward and backward",
        {.variables = {"FSDP_RESHARD_AFTER_FORWARD"}}),
    key<&C::fsdp, &F::sharding_strategy>(
        "fsdp_config.fsdp_sharding_strategy",
        "what is sharded (the older form; decides if it is set)",
        {.variables = {"FSDP_SHARDING_STRATEGY"}, .numbered = true}),
    key<&C::fsdp, &F::offload_params>("fsdp_config.fsdp_offload_params",
                                      "keep parameters and optimizer state off the device; on the "
                                      "CPU in files of AcceleratorOptions::offload.folder",
                                      {.variables = {"FSDP_OFFLOAD_PARAMS"}}),
    key<&C::fsdp, &F::auto_wrap_policy>("fsdp_config.fsdp_auto_wrap_policy",
                                        "how the units are found that are gathered one by one",
                                        {.variables = {"FSDP_AUTO_WRAP_POLICY"}}),
    key<&C::fsdp, &F::transformer_layer_cls_to_wrap>(
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
        "classes of modules that are one unit each",
        {.variables = {"FSDP_TRANSFORMER_CLS_TO_WRAP"}}),
    key<&C::fsdp, &F::min_num_params>("fsdp_config.fsdp_min_num_params",
                                      "parameters of a unit, with SIZE_BASED_WRAP",
                                      {.variables = {"FSDP_MIN_NUM_PARAMS"}}),
    key<&C::fsdp, &F::activation_checkpointing>("fsdp_config.fsdp_activation_checkpointing",
                                                "compute activations again in backward",
                                                {.variables = {"FSDP_ACTIVATION_CHECKPOINTING"}}),
    key<&C::fsdp, &F::activation_checkpointing_offload>(
        "fsdp_config.fsdp_activation_checkpointing_offload",
        "keep what backward needs, of units what they were given, in host memory until then; on "
        "the "
        "CPU in files of AcceleratorOptions::offload.folder",
        {.variables = {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"}}),
    key<&C::fsdp, &F::state_dict_type>("fsdp_config.fsdp_state_dict_type", "form of saved states",
                                       {.variables = {"FSDP_STATE_DICT_TYPE"},
                                        .choices = state_dicts,
                                        .kept = true,
                                        .numbered = true}),
    key<&C::fsdp, &F::cpu_ram_efficient_loading>(
        "fsdp_config.fsdp_cpu_ram_efficient_loading", "load weights on rank 0 only",
        {.variables = {"FSDP_CPU_RAM_EFFICIENT_LOADING"}, .kept = true}),
    key<&C::fsdp, &F::sync_module_states>("fsdp_config.fsdp_sync_module_states",
                                          "broadcast the weights of rank 0 at the start",
                                          {.variables = {"FSDP_SYNC_MODULE_STATES"}, .kept = true}),
    key<&C::fsdp, &F::backward_prefetch>("fsdp_config.fsdp_backward_prefetch",
                                         "when backward gathers the next unit (version 1)",
                                         {.variables = {"FSDP_BACKWARD_PREFETCH"},
                                          .choices = prefetches,
                                          .kept = true,
                                          .numbered = true}),
    key<&C::fsdp, &F::forward_prefetch>("fsdp_config.fsdp_forward_prefetch",
                                        "forward gathers the next unit early (version 1)",
                                        {.variables = {"FSDP_FORWARD_PREFETCH"}, .kept = true}),
    key<&C::fsdp, &F::use_orig_params>("fsdp_config.fsdp_use_orig_params",
                                       "show the optimizer the original parameters (version 1)",
                                       {.variables = {"FSDP_USE_ORIG_PARAMS"}, .kept = true}),
    key<&C::fsdp, &F::ignored_modules>("fsdp_config.fsdp_ignored_modules",
                                       "modules that are not sharded, as a regular expression",
                                       {.variables = {"FSDP_IGNORED_MODULES"}, .kept = true}),

    key<&C::deepspeed, &D::zero_stage>(
        "deepspeed_config.zero_stage",
        "0 shards nothing, 1 optimizer state, 2 gradients, 3 parameters",
        {.variables = {"ACCELERATE_DEEPSPEED_ZERO_STAGE"}, .most = 3, .always = true}),
    key<&C::deepspeed, &D::offload_optimizer_device>(
        "deepspeed_config.offload_optimizer_device", "where the optimizer state is kept",
        {.variables = {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"}}),
    key<&C::deepspeed, &D::offload_param_device>(
        "deepspeed_config.offload_param_device", "where the parameters are kept",
        {.variables = {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"}}),
    key<&C::deepspeed, &D::offload_optimizer_nvme_path>(
        "deepspeed_config.offload_optimizer_nvme_path",
        "folder on a disk for what is offloaded; the same for both"),
    key<&C::deepspeed, &D::offload_param_nvme_path>(
        "deepspeed_config.offload_param_nvme_path",
        "folder on a disk for what is offloaded; the same for both"),
    key<&C::deepspeed, &D::gradient_accumulation_steps>(
        "deepspeed_config.gradient_accumulation_steps",
        "as the key of the top level, which Accelerate reads here only",
        {.least = 1, .flag = "deepspeed_gradient_accumulation_steps"}),
    key<&C::deepspeed, &D::gradient_clipping>("deepspeed_config.gradient_clipping",
                                              "norm that gradients are clipped to", {.kept = true}),
    key<&C::deepspeed, &D::zero3_init_flag>(
        "deepspeed_config.zero3_init_flag", "shard parameters while the model is built",
        {.variables = {"ACCELERATE_DEEPSPEED_ZERO3_INIT"}, .kept = true}),
    key<&C::deepspeed, &D::zero3_save_16bit_model>(
        "deepspeed_config.zero3_save_16bit_model", "gather 16-bit weights for saving",
        {.variables = {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"}, .kept = true}),
    key<&C::deepspeed, &D::config_file>("deepspeed_config.deepspeed_config_file",
                                        "DeepSpeed's own file; accel does not read it"),
    key<&C::deepspeed, &D::moe_layer_cls_names>("deepspeed_config.deepspeed_moe_layer_cls_names",
                                                "classes of mixture-of-experts layers",
                                                {.kept = true}),
    key<&C::deepspeed, &D::multinode_launcher>("deepspeed_config.deepspeed_multinode_launcher",
                                               "DeepSpeed's launcher", {.kept = true}),
    key<&C::deepspeed, &D::hostfile>("deepspeed_config.deepspeed_hostfile",
                                     "DeepSpeed's list of machines", {.kept = true}),
    key<&C::deepspeed, &D::exclusion_filter>("deepspeed_config.deepspeed_exclusion_filter",
                                             "machines and GPUs to leave out", {.kept = true}),
    key<&C::deepspeed, &D::inclusion_filter>("deepspeed_config.deepspeed_inclusion_filter",
                                             "machines and GPUs to use", {.kept = true}),

    key<&C::parallelism, &P::dp_replicate_size>(
        "parallelism_config.parallelism_config_dp_replicate_size", "groups that hold replicas",
        {.variables = {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE"}, .least = 1}),
    key<&C::parallelism, &P::dp_shard_size>(
        "parallelism_config.parallelism_config_dp_shard_size", "processes that share one replica",
        {.variables = {"PARALLELISM_CONFIG_DP_SHARD_SIZE"}, .least = 1}),
    key<&C::parallelism, &P::tp_size>("parallelism_config.parallelism_config_tp_size",
                                      "processes of tensor parallelism",
                                      {.variables = {"PARALLELISM_CONFIG_TP_SIZE"}, .least = 1}),
    key<&C::parallelism, &P::cp_size>("parallelism_config.parallelism_config_cp_size",
                                      "processes of context parallelism",
                                      {.variables = {"PARALLELISM_CONFIG_CP_SIZE"}, .least = 1}),
    key<&C::parallelism, &P::sp_size>("parallelism_config.parallelism_config_sp_size",
                                      "processes of sequence parallelism",
                                      {.variables = {"PARALLELISM_CONFIG_SP_SIZE"}, .least = 1}),
    key<&C::parallelism, &P::cp_backend>("parallelism_config.parallelism_config_cp_backend",
                                         "context parallelism's library", {.kept = true}),
    key<&C::parallelism, &P::cp_comm_strategy>(
        "parallelism_config.parallelism_config_cp_comm_strategy",
        "context parallelism's communication", {.kept = true}),
    key<&C::parallelism, &P::sp_backend>("parallelism_config.parallelism_config_sp_backend",
                                         "sequence parallelism's library", {.kept = true}),
    key<&C::parallelism, &P::sp_seq_length>("parallelism_config.parallelism_config_sp_seq_length",
                                            "length of a sequence", {.kept = true}),
    key<&C::parallelism, &P::sp_seq_length_is_variable>(
        "parallelism_config.parallelism_config_sp_seq_length_is_variable",
        "sequences differ in length", {.kept = true}),
    key<&C::parallelism, &P::sp_attn_implementation>(
        "parallelism_config.parallelism_config_sp_attn_implementation",
        "sequence parallelism's attention", {.kept = true}),

    key<&C::mpirun_hostfile>("mpirun_config.mpirun_hostfile", "list of machines for mpirun",
                             {.kept = true}),
};

constexpr std::string_view sections[] = {"fsdp_config", "deepspeed_config", "parallelism_config",
                                         "mpirun_config"};

constexpr std::string_view foreign[] = {
    "command_file", "commands", "dynamo_config", "fp8_config",      "megatron_lm_config", "tpu_env",
    "tpu_name",     "tpu_vm",   "tpu_zone",      "tpu_use_cluster", "tpu_use_sudo"};

}  // namespace

std::span<const Key> config_keys() { return table; }
std::span<const std::string_view> config_sections() { return sections; }
std::span<const std::string_view> foreign_keys() { return foreign; }

const Key* find_key(std::string_view name) {
  const auto* const found = std::ranges::find(table, name, &Key::name);
  return found == std::end(table) ? nullptr : found;
}

}  // namespace accel
