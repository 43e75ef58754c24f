// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The program accel-config, as a person runs it: what it writes, prints and refuses, and its exit
// codes.
#include "support/scratch_folder.hpp"

#include <accel/config/keys.hpp>
#include <accel/config/yaml.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

struct Outcome {
  int code = -1;
  std::string text;  // both streams
};

// In a folder of its own, with an environment that has nothing of ours.
class Program {
 public:
  Outcome operator()(const std::string& arguments, const std::string& variables = "") const {
    const auto command = "cd '" + folder_.path().string() + "' && env -i HOME='" +
                         folder_.path().string() + "' " + variables +
                         " '" ACCEL_CONFIG_PROGRAM "' " + arguments + " 2>&1";
    FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
    Outcome outcome;
    std::array<char, 4096> buffer{};
    while (const auto size = std::fread(buffer.data(), 1, buffer.size(), pipe))
      outcome.text.append(buffer.data(), size);
    const int status = ::pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
  }

  fs::path file(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream stream(file(name));
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  accel_test::ScratchFolder folder_;
};

TEST_CASE("default writes a file that reads back, and does not overwrite one") {
  const Program run;
  const auto first = run("default");
  CHECK(first.code == 0);
  CHECK(first.text ==
        "wrote accel.yaml: Accelerator<single, fp32, accumulate<1>, on<automatic>>\n");
  accel::Config expected;
  expected.distributed_type = accel::DistributedType::no;
  CHECK(accel::read_config(run.file("accel.yaml")) == expected);

  const auto again = run("default --mixed_precision bf16");
  CHECK(again.code == 1);
  CHECK(
      again.text ==
      "accel-config: accel.yaml: this file exists already; give --overwrite, or another name with "
      "--config_file\n");
  CHECK(run("default --mixed-precision bf16 --overwrite").code == 0);
  CHECK(accel::read_config(run.file("accel.yaml")).mixed_precision == accel::MixedPrecision::bf16);
}

TEST_CASE("every key is a flag, and what is written is what was typed") {
  const Program run;
  const auto outcome = run("default --config_file d/all.json --distributed_type fsdp "
                           "--num-processes 4 --use_cpu --debug=false "
                           "--gradient_accumulation_steps=4 --fsdp_offload_params true "
                           "--fsdp_transformer_layer_cls_to_wrap A,my::B");
  INFO(outcome.text);
  CHECK(outcome.code == 0);
  const auto config = accel::read_config(run.file("d/all.json"));
  CHECK(run.read("d/all.json").starts_with("{\n"));
  CHECK(config.distributed_type == accel::DistributedType::fsdp);
  CHECK(config.num_processes == 4);
  CHECK(config.use_cpu);
  CHECK_FALSE(config.debug);
  CHECK(config.gradient_accumulation_steps == 4);
  CHECK(config.fsdp.offload_params);
  CHECK(config.fsdp.transformer_layer_cls_to_wrap == std::vector<std::string>{"A", "my::B"});

  const auto help = run("default --help").text;
  for (const auto& key : accel::config_keys())
    CHECK_THAT(help, ContainsSubstring("--" + std::string(key.flag)));
}

TEST_CASE("default ignores the environment") {
  const Program run;
  CHECK(run("default", "ACCEL_MIXED_PRECISION=bf16").code == 0);
  CHECK(accel::read_config(run.file("accel.yaml")).mixed_precision == accel::MixedPrecision::no);
}

TEST_CASE("default refuses what validate refuses, and writes nothing") {
  const Program run;
  const auto outcome = run("default --num_processes 2");
  CHECK(outcome.code == 1);
  CHECK_THAT(
      outcome.text,
      StartsWith("accel-config: configuration: distributed_type is NO, but num_processes is 2"));
  CHECK_FALSE(fs::exists(run.file("accel.yaml")));
}

TEST_CASE("header writes the header, and leaves an unchanged one alone") {
  const Program run;
  run.write("a.yaml", "mixed_precision: bf16\n");
  CHECK(run("header --config_file a.yaml --output d/p.hpp --namespace app").code == 0);
  const auto text = run.read("d/p.hpp");
  CHECK_THAT(text, StartsWith("// Made by accel-config from a.yaml. ") &&
                       ContainsSubstring("using Precision = accel::bf16;"));

  const auto before = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(run.file("d/p.hpp"), before);
  CHECK(run("header --config_file a.yaml --output d/p.hpp --namespace app").code == 0);
  CHECK(fs::last_write_time(run.file("d/p.hpp")) == before);

  run.write("a.yaml", "mixed_precision: fp16\n");
  CHECK(run("header --config_file a.yaml --output d/p.hpp --namespace app").code == 0);
  CHECK(fs::last_write_time(run.file("d/p.hpp")) > before);
}

TEST_CASE("header gives the same types whatever the environment says") {
  const Program run;
  run.write("a.yaml", "mixed_precision: bf16\n");
  CHECK(run("header --config_file a.yaml --output p.hpp", "ACCEL_MIXED_PRECISION=fp16").code == 0);
  CHECK_THAT(run.read("p.hpp"), ContainsSubstring("using Precision = accel::bf16;"));
}

TEST_CASE("header refuses a wrong file and keeps the old header") {
  const Program run;
  run.write("a.yaml", "mixed_precision: bf17\nnum_processes: 0\n");
  run.write("p.hpp", "old");
  const auto outcome = run("header --config_file a.yaml --output p.hpp");
  CHECK(outcome.code == 1);
  CHECK(outcome.text == "accel-config: 2 faults in the configuration:\n"
                        "  a.yaml:1: mixed_precision: 'bf17' is not one of no, bf16, fp16, "
                        "bf16_true; did you mean 'bf16'?\n"
                        "  a.yaml:2: num_processes: '0' is out of range; write 1 or more\n");
  CHECK(run.read("p.hpp") == "old");
  CHECK_THAT(run("header --config_file none.yaml --output p.hpp").text,
             StartsWith("accel-config: none.yaml: No such file or directory"));
}

// The line of a table that begins with a key.
std::string line_of(const std::string& text, const std::string& key) {
  const auto begin = text.find("\n" + key + " ");
  return begin == std::string::npos
             ? ""
             : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

TEST_CASE("show prints each value with the place it came from") {
  const Program run;
  run.write("accel.yaml",
            "use_cpu: true\nnum_processes: 3\ndynamo_config: {dynamo_backend: EAGER}\n");
  const auto outcome = run("show --mixed_precision bf16", "ACCELERATE_NUM_PROCESSES=4");
  INFO(outcome.text);
  CHECK(outcome.code == 0);
  CHECK_THAT(
      outcome.text,
      StartsWith(
          "file      accel.yaml\npolicies  Accelerator<ddp, bf16, accumulate<1>, on<cpu>>\n\n"));
  CHECK_THAT(line_of(outcome.text, "use_cpu"),
             ContainsSubstring(" true ") && EndsWith(" accel.yaml:1"));
  CHECK_THAT(line_of(outcome.text, "num_processes"),
             ContainsSubstring(" 4 ") && EndsWith(" ACCELERATE_NUM_PROCESSES"));
  CHECK_THAT(line_of(outcome.text, "mixed_precision"),
             ContainsSubstring(" bf16 ") && EndsWith(" --mixed_precision"));
  CHECK_THAT(line_of(outcome.text, "debug"), ContainsSubstring(" false ") && EndsWith(" default"));
  CHECK_THAT(line_of(outcome.text, "dynamo_config"), EndsWith(" kept for Python"));
  for (const auto& key : accel::config_keys())
    CHECK_FALSE(line_of(outcome.text, std::string(key.name)).empty());
}

TEST_CASE("show without a file says where it looked; as JSON it is a configuration") {
  const Program run;
  CHECK_THAT(run("show").text,
             StartsWith("file      none; looked for accel.yaml, ") &&
                 ContainsSubstring("/.config/accel/accel.yaml, ") &&
                 ContainsSubstring("/huggingface/accelerate/default_config.yaml\n"));
  const auto json = run("show --json --num_processes 2");
  CHECK(json.code == 0);
  CHECK(accel::parse_config(json.text, "shown.json").num_processes == 2);
}

TEST_CASE("a mistyped command line is refused with a suggestion") {
  const Program run;
  const auto flag = run("default --mixed-precison bf16");
  CHECK(flag.code == 2);
  CHECK_THAT(flag.text,
             StartsWith("accel-config: ") && EndsWith("; did you mean '--mixed_precision'?\n"));
  CHECK_FALSE(fs::exists(run.file("accel.yaml")));
  CHECK(run("").code == 2);
  CHECK(run("frobnicate").code == 2);
  CHECK(run("header").code == 2);
  CHECK(run("default --num_processes").code == 2);
  CHECK(run("--help").code == 0);
  CHECK(run("default --mixed_precision bf17").text ==
        "accel-config: --mixed_precision: 'bf17' is not one of no, bf16, fp16, bf16_true; did you "
        "mean 'bf16'?\n");
}

}  // namespace
