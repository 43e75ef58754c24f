// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with a file is said with the file, the line and the key, and all of it at once.
#include "support/scratch_folder.hpp"

#include <accel/config/yaml.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fstream>
#include <string>

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

std::string fault_of(const std::string& text, const std::string& name = "a.yaml") {
  try {
    static_cast<void>(accel::parse_config(text, name));
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::config);
    return error.what();
  }
  return "no fault";
}

TEST_CASE("B41 an unknown key is named with file, line, and what was meant") {
  CHECK(fault_of("use_cpu: true\n\nnum_proceses: 2\n") ==
        "a.yaml:3: 'num_proceses': unknown key; did you mean 'num_processes'?");
  CHECK(fault_of("fsdp_config:\n  fsdp_min_params: 2\n") ==
        "a.yaml:2: 'fsdp_min_params': unknown key of fsdp_config; did you mean "
        "'fsdp_min_num_params'?");
  CHECK(fault_of("learning_rate: 1\n") ==
        "a.yaml:1: 'learning_rate': unknown key; `accel-config show` lists them all");
  CHECK(fault_of("fsdp_conf: {}\n") ==
        "a.yaml:1: 'fsdp_conf': unknown key; did you mean 'fsdp_config'?");
  CHECK(fault_of("{\n  \"use_cpu\": true,\n  \"num_proceses\": 2\n}\n", "a.json") ==
        "a.json:3: 'num_proceses': unknown key; did you mean 'num_processes'?");
}

TEST_CASE("a key at the wrong level is sent to the right one") {
  CHECK(fault_of("fsdp_version: 2\n") ==
        "a.yaml:1: 'fsdp_version': this key belongs into fsdp_config");
  CHECK(fault_of("fsdp_config:\n  num_processes: 2\n") ==
        "a.yaml:2: 'num_processes': this key belongs to the top level");
  CHECK(fault_of("fsdp_config.fsdp_version: 2\n") ==
        "a.yaml:1: 'fsdp_config.fsdp_version': unknown key; `accel-config show` lists them all");
}

TEST_CASE("B41 a value of the wrong type is named with file, line and key") {
  CHECK(fault_of("num_processes: four\n") ==
        "a.yaml:1: num_processes: 'four' is a text, but the key needs a whole number");
  CHECK(fault_of("num_processes: '4'\n") == "a.yaml:1: num_processes: '4' is a text, but the key "
                                            "needs a whole number; remove the quotes");
  CHECK(fault_of("num_processes: 4.5\n") ==
        "a.yaml:1: num_processes: '4.5' is not a whole number; write one (1 or more)");
  CHECK(fault_of("num_processes: true\n") ==
        "a.yaml:1: num_processes: 'true' is true or false, but the key needs a whole number");
  CHECK(fault_of("num_processes: [4]\n") ==
        "a.yaml:1: num_processes: this is a list, but the key needs a whole number");
  CHECK(fault_of("use_cpu: 1\n") ==
        "a.yaml:1: use_cpu: '1' is a number, but the key needs true or false");
  CHECK(fault_of("use_cpu: maybe\n") == "a.yaml:1: use_cpu: 'maybe' is not true or false");
  CHECK(fault_of("main_process_ip: no\n") == "a.yaml:1: main_process_ip: 'no' is true or false, "
                                             "but the key needs a text; put quotes around it "
                                             "if it is one");
  CHECK(fault_of("mixed_precision: fp8\n") == "a.yaml:1: mixed_precision: 'fp8' is not one of no, "
                                              "bf16, fp16, bf16_true");
  CHECK(fault_of("distributed_type: MEGATRON_LM\n") ==
        "a.yaml:1: distributed_type: 'MEGATRON_LM' is not one of NO, MULTI_CPU, MULTI_GPU, FSDP, "
        "DEEPSPEED, XLA");
  CHECK(fault_of("compute_environment: AMAZON_SAGEMAKER\n") ==
        "a.yaml:1: compute_environment: 'AMAZON_SAGEMAKER' is not one of LOCAL_MACHINE");
  CHECK(fault_of("fsdp_config: 3\n") ==
        "a.yaml:1: fsdp_config: this is a section, with its keys indented below it, not a number");
  CHECK(fault_of("fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: [A, [B]]\n") ==
        "a.yaml:2: fsdp_config.fsdp_transformer_layer_cls_to_wrap: an entry of the list is not a "
        "name: ''");
  CHECK(fault_of("{\"num_processes\": \"4\"}", "a.json") ==
        "a.json:1: num_processes: '4' is a text, but the key needs a whole number; remove the "
        "quotes");
  CHECK(fault_of("{\"mixed_precision\": false}", "a.json")
            .starts_with(
                "a.json:1: mixed_precision: 'false' is not one of no, bf16, fp16, bf16_true"));
}

TEST_CASE("B41 all faults of a file come at once, in its order") {
  CHECK(fault_of(R"(num_proceses: 2
mixed_precision: bf61
machine_rank: -1
fsdp_config:
  fsdp_version: 3
  fsdp_offload_params: perhaps
main_process_port: 65536
)") == R"(6 faults in the configuration:
  a.yaml:1: 'num_proceses': unknown key; did you mean 'num_processes'?
  a.yaml:2: mixed_precision: 'bf61' is not one of no, bf16, fp16, bf16_true; did you mean 'bf16'?
  a.yaml:3: machine_rank: '-1' is out of range; write 0 or more
  a.yaml:5: fsdp_config.fsdp_version: '3' is out of range; write 1 to 2
  a.yaml:6: fsdp_config.fsdp_offload_params: 'perhaps' is not true or false
  a.yaml:7: main_process_port: '65536' is out of range; write 0 to 65535)");
}

TEST_CASE("a key that is given twice is a fault in both formats, and across old and new names") {
  CHECK(fault_of("num_processes: 2\nuse_cpu: no\nnum_processes: 3\n") ==
        "a.yaml:3: 'num_processes' is given already on line 1; remove one");
  CHECK_THAT(fault_of("{\"use_cpu\": true,\n\"use_cpu\": false}", "a.json"),
             ContainsSubstring("a.json:2: 'use_cpu' is given already on line 1; remove one"));
  CHECK(fault_of("fsdp_config:\n  min_num_params: 1\n  fsdp_min_num_params: 2\n") ==
        "a.yaml:3: fsdp_config.fsdp_min_num_params: this is given already on line 2; remove one");
}

TEST_CASE("broken syntax is said with its line") {
  CHECK_THAT(fault_of("a: [1, 2\nb: 3\n"), StartsWith("a.yaml:") && ContainsSubstring("as YAML: "));
  CHECK_THAT(fault_of("use_cpu: true\n\t- x\n"),
             StartsWith("a.yaml:2: cannot read this as YAML: "));
  CHECK_THAT(fault_of("{\n\"use_cpu\": true,\n\"debug\" false}", "a.json"),
             StartsWith("a.json:3: cannot read this as JSON: syntax error"));
  CHECK_THAT(fault_of("", "a.json"), ContainsSubstring("as JSON"));
  CHECK_THAT(fault_of("{} {}", "a.json"), ContainsSubstring("as JSON"));
  CHECK(fault_of("use_cpu: true\n---\nuse_cpu: false\n").find("YAML: a second document") !=
        std::string::npos);
  CHECK(fault_of("- 1\n- 2\n") ==
        "a.yaml: a configuration is a list of `key: value` lines; this is a list");
  CHECK(fault_of("just a sentence\n") ==
        "a.yaml: a configuration is a list of `key: value` lines; this is a text");
  CHECK(fault_of("[]", "a.json") ==
        "a.json: a configuration is a list of `key: value` lines; this is a list");
  CHECK(fault_of("? [a, b]\n: 1\n").find("a key must be a word") != std::string::npos);
  CHECK(fault_of("main_process_ip: \"a\\Nb\"\n") ==
        "a.yaml:1: cannot read this as YAML: an escape in this text gives no UTF-8");
  CHECK(fault_of("use_cpu: \xFF\n") == "a.yaml: the file is not UTF-8 text");
}

TEST_CASE("a file made to exhaust the reader is refused") {
  CHECK_THAT(fault_of(std::string(100'000, '[')), ContainsSubstring("as YAML"));
  CHECK_THAT(fault_of(std::string(100'000, '['), "a.json"), ContainsSubstring("nested too deeply"));
  CHECK_THAT(fault_of("tpu_env: " + std::string(40, '[') + std::string(40, ']')),
             ContainsSubstring("nested too deeply"));
  CHECK(fault_of("tpu_env: &a [*a]\n") ==
        "a.yaml:1: cannot read this as YAML: this is inside of what it stands for");
  // yaml-cpp 0.7 takes this for documents without number.
  CHECK(fault_of("{},\n") == "a.yaml:1: cannot read this as YAML: a second document begins here; "
                             "keep one in the file");
  std::string bomb = "tpu_env:\n- &a0 [x, x]\n";
  for (int level = 1; level < 30; ++level) {
    const auto below = std::to_string(level - 1);
    bomb += "- &a" + std::to_string(level) + " [*a" + below + ", *a" + below + "]\n";
  }
  CHECK_THAT(fault_of(bomb), ContainsSubstring("too many values"));
  std::string long_list = "{\"tpu_env\": [0";
  for (int i = 0; i < 30'000; ++i) long_list += ",0";
  CHECK_THAT(fault_of(long_list + "]}", "a.json"), ContainsSubstring("too many values"));
}

TEST_CASE("B41 a file that cannot be read is named") {
  const accel_test::ScratchFolder folder;
  const auto fault = [](const std::filesystem::path& path) {
    try {
      static_cast<void>(accel::read_config(path));
    } catch (const accel::Error& error) {
      return std::string(error.what());
    }
    return std::string("no fault");
  };
  const auto missing = (folder / "none.yaml").string();
  CHECK(fault(missing) == missing +
                              ": No such file or directory; write one with `accel-config default "
                              "--config_file " +
                              missing + "`");
  CHECK(fault(folder.path()) ==
        folder.path().string() + ": this is a folder; name the configuration file in it");
  std::ofstream(folder / "large.yaml") << std::string((1 << 20) + 1, '#');
  CHECK_THAT(fault(folder / "large.yaml"), ContainsSubstring("larger than 1 MiB"));
}

}  // namespace
