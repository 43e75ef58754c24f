// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A configuration means policies that exist and go together, and policies mean a configuration.
#include "random_config.hpp"

#include <accel/config/config_of.hpp>
#include <accel/config/policy_names.hpp>
#include <accel/config/validate.hpp>
#include <accel/config/yaml.hpp>
#include <accel/detail/error.hpp>
#include <accel/policy/matrix.hpp>

#include <boost/hana/for_each.hpp>
#include <boost/hana/type.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <set>
#include <string>

namespace {

using accel::PolicyNames;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

PolicyNames names_of(const std::string& yaml) {
  return accel::policy_names(accel::parse_config(yaml, "a.yaml"));
}

TEST_CASE("each type of job has its backend") {
  CHECK(names_of("") == PolicyNames{});
  CHECK(names_of("distributed_type: 'NO'").backend == "single");
  CHECK(names_of("num_processes: 2") == PolicyNames{.backend = "ddp"});
  CHECK(names_of("{num_processes: 2, use_cpu: true}") ==
        PolicyNames{.backend = "ddp", .placement = "on<cpu>"});
  CHECK(names_of("{distributed_type: MULTI_CPU, num_processes: 2}") ==
        PolicyNames{.backend = "ddp", .placement = "on<cpu>"});
  CHECK(names_of("{distributed_type: MULTI_GPU, num_processes: 2}") ==
        PolicyNames{.backend = "ddp", .placement = "on<cuda>"});
  CHECK(names_of("distributed_type: XLA") ==
        PolicyNames{.backend = "xla", .placement = "on<xla_device>"});
  const auto zero = [](int stage) {
    return names_of("{distributed_type: DEEPSPEED, deepspeed_config: {zero_stage: " +
                    std::to_string(stage) + "}}")
        .backend;
  };
  CHECK(zero(0) == "ddp");
  CHECK(zero(1) == "sharded<zero1>");
  CHECK(zero(2) == "sharded<zero2>");
  CHECK(zero(3) == "sharded<zero3>");
}

TEST_CASE("FSDP's two versions") {
  const auto fsdp = [](const std::string& keys) {
    return names_of("{distributed_type: FSDP, fsdp_config: {" + keys + "}}").backend;
  };
  CHECK(fsdp("") == "sharded<zero3>");
  CHECK(fsdp("fsdp_reshard_after_forward: false") == "sharded<fsdp_zero2>");
  CHECK(fsdp("fsdp_version: 1, fsdp_sharding_strategy: FULL_SHARD") == "sharded<zero3>");
  CHECK(fsdp("fsdp_version: 1, fsdp_sharding_strategy: SHARD_GRAD_OP") == "sharded<fsdp_zero2>");
  CHECK(fsdp("fsdp_version: 1, fsdp_sharding_strategy: HYBRID_SHARD") == "sharded<hybrid<zero3>>");
  CHECK(fsdp("fsdp_version: 1, fsdp_sharding_strategy: HYBRID_SHARD_ZERO2") ==
        "sharded<hybrid<fsdp_zero2>>");
  CHECK(fsdp("fsdp_version: 1, fsdp_sharding_strategy: NO_SHARD") == "ddp");
  CHECK(fsdp("fsdp_auto_wrap_policy: SIZE_BASED_WRAP") == "sharded<zero3, wrap_by_size>");
  CHECK(fsdp("fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP") == "sharded<zero3>");
  CHECK(fsdp("fsdp_transformer_layer_cls_to_wrap: 'A,my::B'") == "sharded<zero3, wrap<A, my::B>>");
  CHECK(names_of("{distributed_type: FSDP, num_processes: 8, parallelism_config: "
                 "{parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 4}}")
            .backend == "sharded<hybrid<zero3>>");
}

TEST_CASE("the other axes") {
  CHECK(names_of("mixed_precision: bf16").precision == "bf16");
  CHECK(names_of("mixed_precision: fp16").precision == "fp16");
  CHECK(names_of("mixed_precision: bf16_true").precision == "bf16_true");
  CHECK(names_of("{mixed_precision: bf16_true, master_weights: true}").precision ==
        "with_masters<bf16_true>");
  CHECK(names_of("gradient_accumulation_steps: 4").accumulation == "accumulate<4>");
  CHECK(names_of("{gradient_accumulation_steps: 4, gradient_accumulation_dynamic: true}")
            .accumulation == "accumulate<dynamic>");
  CHECK(
      names_of("{distributed_type: DEEPSPEED, deepspeed_config: {gradient_accumulation_steps: 3}}")
          .accumulation == "accumulate<3>");
  CHECK(names_of("deepspeed_config: {gradient_accumulation_steps: 3}").accumulation ==
        "accumulate<1>");
  CHECK(names_of("gpu_ids: '0'").placement == "on<cuda>");
  CHECK(names_of("{gpu_ids: all, use_cpu: true}").placement == "on<cpu>");
  CHECK(names_of("{distributed_type: FSDP, fsdp_config: {fsdp_activation_checkpointing: true, "
                 "fsdp_activation_checkpointing_offload: true}}")
            .placement == "on<automatic, offload<activations>, recomputed<wrap_auto>>");
  CHECK(names_of("{distributed_type: FSDP, fsdp_config: {fsdp_activation_checkpointing: true, "
                 "fsdp_activation_checkpointing_offload: true, fsdp_offload_params: true}}")
            .placement ==
        "on<automatic, offload<optimizer_state, parameters, activations>, recomputed<wrap_auto>>");
  CHECK(names_of("{activation_offload: true, use_cpu: true}").placement ==
        "on<cpu, offload<activations>>");
  CHECK(names_of("activation_checkpointing: true").placement ==
        "on<automatic, recomputed<wrap_auto>>");
  CHECK(names_of("{distributed_type: FSDP, fsdp_config: {fsdp_offload_params: true, "
                 "fsdp_activation_checkpointing: true, fsdp_transformer_layer_cls_to_wrap: A}}")
            .placement ==
        "on<automatic, offload<optimizer_state, parameters>, recomputed<wrap<A>>>");
  CHECK(names_of("{distributed_type: DEEPSPEED, deepspeed_config: {offload_optimizer_device: cpu}}")
            .placement == "on<automatic, offload<optimizer_state>>");
}

TEST_CASE("a configuration that breaks a rule means nothing") {
  CHECK_THROWS_MATCHES(
      names_of("{distributed_type: 'NO', num_processes: 2}"), accel::Error,
      MessageMatches(ContainsSubstring("distributed_type is NO, but num_processes is 2")));
}

// Everything that policy/matrix.hpp says goes together, as text; with the units of the matrix.
std::set<std::string> legal_names() {
  namespace matrix = accel::detail::matrix;
  namespace hana = boost::hana;
  std::set<std::string> legal;
  hana::for_each(matrix::backends, [&]<class Backend>(hana::basic_type<Backend>) {
    hana::for_each(matrix::precisions, [&]<class Precision>(hana::basic_type<Precision>) {
      hana::for_each(matrix::placements, [&]<class Placement>(hana::basic_type<Placement>) {
        if constexpr (accel::ComposablePolicies<Backend, Precision, accel::accumulate<1>,
                                                Placement>) {
          legal.insert(std::string(Backend::name) + " " + std::string(Precision::name) + " " +
                       std::string(Placement::name));
        }
      });
    });
  });
  return legal;
}

TEST_CASE(
    "every legal combination is meant by the configuration that config_of makes, but for two") {
  const auto legal = legal_names();
  REQUIRE(legal.size() > 200);
  int meant = 0;
  for (const auto& line : legal) {
    INFO(line);
    const auto first = line.find(' ');
    const auto second = line.find(' ', first + 1);
    const PolicyNames names{line.substr(0, first), line.substr(first + 1, second - first - 1),
                            "accumulate<4>", line.substr(second + 1)};
    // FSDP offloads all or nothing, and DeepSpeed has no such stage.
    const bool unsayable = names.backend.find("fsdp_zero2") != std::string::npos &&
                           names.placement.find("offload<optimizer_state>") != std::string::npos;
    if (unsayable) {
      CHECK_THROWS_MATCHES(accel::config_of(names), accel::Error,
                           MessageMatches(ContainsSubstring("no configuration means")));
      continue;
    }
    const auto config = accel::config_of(names);
    CHECK(accel::policy_names(config) == names);
    CHECK(accel::parse_config(accel::to_yaml(config), "a.yaml") == config);
    ++meant;
  }
  CHECK(meant > 200);
}

// What goes with what does not depend on whether activations wait elsewhere, but for xla, which the
// rules know.
std::string without_activations(std::string placement) {
  for (const std::string_view part : {", offload<activations>", ", activations"})
    if (const auto at = placement.find(part); at != std::string::npos)
      placement.erase(at, part.size());
  return placement;
}

TEST_CASE("no configuration that passes the rules means policies that do not go together") {
  const auto legal = legal_names();
  accel_test::RandomConfig draw(7);
  int passed = 0;
  for (int trial = 0; trial < 60'000; ++trial) {
    auto config = draw();
    config.fsdp.transformer_layer_cls_to_wrap.clear();
    if (config.fsdp.auto_wrap_policy == accel::WrapPolicy::size_based_wrap)
      config.fsdp.auto_wrap_policy.reset();
    config.num_processes = static_cast<int>(1 + draw.below(4));
    config.num_machines = 1;
    config.machine_rank = 0;
    if (draw.below(2) == 0) config.parallelism = {};
    if (draw.below(2) == 0) config.deepspeed.gradient_accumulation_steps.reset();
    accel::Faults faults;
    accel::check_rules(config, "drawn", faults);
    if (!faults.empty()) continue;
    ++passed;
    const auto names = accel::policy_names(config);
    INFO(to_text(names));
    CHECK(legal.contains(names.backend + " " + names.precision + " " +
                         without_activations(names.placement)));
  }
  CHECK(passed > 1000);
}

TEST_CASE("spellings are read with FSDP's names and any white space") {
  const auto meant = [](PolicyNames names) { return accel::policy_names(accel::config_of(names)); };
  CHECK(meant({.backend = "full_shard"}).backend == "sharded<zero3>");
  CHECK(meant({.backend = "hybrid_shard_zero2"}).backend == "sharded<hybrid<fsdp_zero2>>");
  CHECK(meant({.backend = "no_shard"}).backend == "ddp");
  CHECK(meant({.backend = " sharded < zero1 ,wrap<A,my::B> > "}).backend ==
        "sharded<zero1, wrap<A, my::B>>");
  CHECK(meant({.placement = "on<cpu, recomputed<>>"}).placement ==
        "on<cpu, recomputed<wrap_auto>>");
}

TEST_CASE("a spelling of no policy is refused with those there are") {
  const auto refused = [](const PolicyNames& names, const std::string& text) {
    CHECK_THROWS_MATCHES(accel::config_of(names), accel::Error,
                         MessageMatches(ContainsSubstring(text)));
  };
  refused({.backend = "fsdp"},
          "'fsdp': this is no backend policy; use one of single, ddp, sharded<Stage, Units>, xla");
  refused({.backend = "single<int>"}, "no backend policy");
  refused({.backend = "sharded"}, "no backend policy");
  refused({.backend = "sharded<zero4>"}, "no backend policy");
  refused({.backend = "sharded<zero1, A, B>"}, "no backend policy");
  refused({.backend = "sharded<hybrid<zero1>>"}, "zero_stage 1 shards no gradients");
  refused({.precision = "fp8"}, "no precision policy");
  refused({.precision = "with_masters<bf16>"}, "no precision policy");
  refused({.accumulation = "accumulate<0>"}, "no accumulation policy");
  refused({.accumulation = "accumulate<x>"}, "no accumulation policy");
  refused({.accumulation = "accumulate<-1>"},
          "this is not the spelling of a policy; character 12 should be a name");
  refused({.accumulation = "accumulate<99999999999999999999>"}, "no accumulation policy");
  refused({.placement = "on<tpu>"}, "no placement policy");
  refused({.placement = "on<cpu, offload<>>"}, "no placement policy");
  refused({.placement = "on<cpu, offload<optimizer_state>>"}, "no configuration means");
  refused({.placement = "on<cpu"}, "character 7 should be ',' or '>'");
  refused({.placement = "on<cpu>>"}, "character 8 should be the end");
  refused({.placement = ""}, "character 1 should be a name");
  refused({.backend = std::string(100, '<')}, "should be a name");
}

}  // namespace
