// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of keys is consistent, and each line of it reaches the member that it names.
#include <accel/config/keys.hpp>
#include <accel/config/flags.hpp>

#include <catch2/catch_test_macros.hpp>

#include <set>
#include <string>
#include <vector>

namespace {

TEST_CASE("each key has a name, a flag and variables of its own") {
  std::set<std::string> seen;
  for (const auto& key : accel::config_keys()) {
    INFO(key.name);
    CHECK(seen.insert(std::string(key.name)).second);
    CHECK(seen.insert("flag " + std::string(key.flag)).second);
    for (const auto& variable : accel::environment_names(key)) CHECK(seen.insert(variable).second);
    CHECK_FALSE(key.help.empty());
    CHECK(key.least <= key.most);
    CHECK((key.kind == accel::KeyKind::choice) == !key.choices.empty());
    CHECK(accel::find_key(key.name) == &key);
  }
  CHECK(accel::find_key("fsdp_version") == nullptr);
  CHECK(accel::find_key("") == nullptr);
}

TEST_CASE("a key sets its own member, and no value sets the default again") {
  const accel::Config standard;
  for (const auto& key : accel::config_keys()) {
    INFO(key.name);
    accel::Config config;
    accel::Value other = std::string("another");
    const auto value = key.get(config);
    switch (key.kind) {
      case accel::KeyKind::boolean: other = !(value && std::get<bool>(*value)); break;
      case accel::KeyKind::integer:
        other = value ? std::get<std::int64_t>(*value) + 1 : key.least;
        break;
      case accel::KeyKind::number: other = 0.25; break;
      case accel::KeyKind::names: other = std::vector<std::string>{"Block"}; break;
      case accel::KeyKind::choice: other = std::string(key.choices.back()); break;
      case accel::KeyKind::text: break;
    }
    key.set(config, other);
    CHECK(key.get(config) == other);
    for (const auto& unrelated : accel::config_keys()) {
      if (&unrelated != &key) CHECK(unrelated.get(config) == unrelated.get(standard));
    }
    key.set(config, std::nullopt);
    CHECK(config == standard);
  }
}

TEST_CASE("variables follow one rule, with Accelerate's exceptions after it") {
  using Names = std::vector<std::string>;
  CHECK(accel::environment_names(*accel::find_key("mixed_precision")) ==
        Names{"ACCEL_MIXED_PRECISION", "ACCELERATE_MIXED_PRECISION"});
  CHECK(accel::environment_names(
            *accel::find_key("fsdp_config.fsdp_transformer_layer_cls_to_wrap")) ==
        Names{"ACCEL_FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP",
              "ACCELERATE_FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP"});
  CHECK(accel::environment_names(*accel::find_key("deepspeed_config.gradient_accumulation_steps"))
            .front() == "ACCEL_DEEPSPEED_GRADIENT_ACCUMULATION_STEPS");
}

TEST_CASE("a text becomes the value it means, or says why it does not") {
  const auto parse = [](const char* name, const char* text) {
    std::string why;
    const auto value = accel::parse_value(*accel::find_key(name), text, why);
    return value ? accel::to_text(*value) : why;
  };
  CHECK(parse("use_cpu", "True") == "true");
  CHECK(parse("use_cpu", "0") == "false");
  CHECK(parse("use_cpu", "False") == "false");
  CHECK(parse("use_cpu", "2") == "'2' is not true or false");
  CHECK(parse("num_processes", " 4 ") == "4");
  CHECK(parse("num_processes", "0") == "'0' is out of range; write 1 or more");
  CHECK(parse("num_processes", "-3") == "'-3' is out of range; write 1 or more");
  CHECK(parse("num_processes", "2147483648") == "'2147483648' is out of range; write 1 or more");
  CHECK(parse("num_processes", "99999999999999999999") ==
        "'99999999999999999999' is out of range; write 1 or more");
  CHECK(parse("num_processes", "010") == "'010' is not a whole number; write one (1 or more)");
  CHECK(parse("num_processes", "4.0") == "'4.0' is not a whole number; write one (1 or more)");
  CHECK(parse("num_processes", "") == "'' is not a whole number; write one (1 or more)");
  CHECK(parse("main_process_port", "70000") == "'70000' is out of range; write 0 to 65535");
  CHECK(parse("mixed_precision", "BF16") == "bf16");
  CHECK(parse("mixed_precision", "bf61") ==
        "'bf61' is not one of no, bf16, fp16, bf16_true; did you mean 'bf16'?");
  CHECK(parse("fsdp_config.fsdp_sharding_strategy", "2") == "SHARD_GRAD_OP");
  CHECK(parse("fsdp_config.fsdp_sharding_strategy", "6")
            .starts_with("'6' is not one of FULL_SHARD, "));
  CHECK(parse("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "A, B") == "A,B");
  CHECK(parse("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "") == "");
  CHECK(parse("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "A,,B") ==
        "'A,,B' has an empty name between commas");
  CHECK(parse("deepspeed_config.gradient_clipping", "0.5") == "0.5");
  CHECK(parse("deepspeed_config.gradient_clipping", "nan") == "'nan' is not a finite number");
  CHECK(parse("deepspeed_config.gradient_clipping", "1e999") == "'1e999' is not a finite number");
  CHECK(parse("main_process_ip", " as it is ") == " as it is ");
}

TEST_CASE("a flag has both spellings, and its help lists the choices") {
  CHECK(accel::flag_spellings(*accel::find_key("debug")) == "--debug");
  CHECK(accel::flag_spellings(*accel::find_key("fsdp_config.fsdp_version")) ==
        "--fsdp_version,--fsdp-version");
  CHECK(accel::flag_help(*accel::find_key("mixed_precision")) ==
        "number types of the computation: no, bf16, fp16, bf16_true");
}

}  // namespace
