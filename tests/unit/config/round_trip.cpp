// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What is written reads back equal, for every value that a configuration can have.
#include "random_config.hpp"
#include "support/scratch_folder.hpp"

#include <accel/config/keys.hpp>
#include <accel/config/yaml.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

TEST_CASE("B41 a written file reads back equal: 400 drawn configurations, YAML and JSON") {
  accel_test::RandomConfig draw(20);
  const accel_test::ScratchFolder folder;
  for (int trial = 0; trial < 400; ++trial) {
    const auto config = draw();
    const auto yaml = accel::to_yaml(config);
    INFO(yaml);
    CHECK(accel::parse_config(yaml, "a.yaml") == config);
    CHECK(accel::parse_config(accel::to_json(config), "a.json") == config);
    // Accelerate writes JSON into files that are called .yaml.
    CHECK(accel::parse_config(accel::to_json(config), "a.yaml") == config);
    if (trial < 20) {
      for (const auto* name : {"c.yaml", "c.json"}) {
        accel::write_config(folder / name, config);
        CHECK(accel::read_config(folder / name) == config);
      }
    }
  }
}

TEST_CASE("writing is deterministic, and writing what was read changes nothing") {
  accel_test::RandomConfig draw(4);
  for (int trial = 0; trial < 50; ++trial) {
    const auto yaml = accel::to_yaml(draw());
    CHECK(accel::to_yaml(accel::parse_config(yaml, "a.yaml")) == yaml);
  }
}

TEST_CASE("the default file has Accelerate's main keys and a comment each") {
  accel::Config config;
  config.distributed_type = accel::DistributedType::no;
  CHECK(accel::to_yaml(config) ==
        "compute_environment: LOCAL_MACHINE  # where the job runs\n"
        "distributed_type: \"NO\"  # how the processes work together\n"
        "use_cpu: false  # stay on the CPU even if there is a GPU\n"
        "num_processes: 1  # processes of the job, over all machines\n"
        "num_machines: 1  # machines of the job\n"
        "machine_rank: 0  # which of the machines this one is, from 0\n"
        "mixed_precision: \"no\"  # number types of the computation\n"
        "debug: false  # before each collective, compare what ranks call and from which line\n");
  // Keys of ours, which Accelerate refuses, are left out while they have their default.
  for (const auto& key : accel::config_keys()) CHECK_FALSE((key.ours && key.always));
}

TEST_CASE("a section is written with the type that uses it") {
  accel::Config config;
  config.distributed_type = accel::DistributedType::fsdp;
  CHECK_THAT(accel::to_yaml(config), ContainsSubstring("\nfsdp_config:\n  fsdp_version: 2  #"));
  config.distributed_type = accel::DistributedType::deepspeed;
  CHECK_THAT(accel::to_yaml(config), ContainsSubstring("\ndeepspeed_config:\n  zero_stage: 2  #"));
  CHECK_THAT(accel::to_yaml(config), !ContainsSubstring("fsdp_config"));
}

TEST_CASE("a value that no file can hold is refused, with its key") {
  const auto refused = [](auto change, const std::string& key) {
    accel::Config config;
    change(config);
    CHECK_THROWS_MATCHES(accel::to_yaml(config), accel::Error,
                         MessageMatches(ContainsSubstring(key)));
    CHECK_THROWS_MATCHES(accel::to_json(config), accel::Error,
                         MessageMatches(ContainsSubstring(key)));
  };
  refused([](auto& c) { c.main_process_ip = "\xFF\xFE"; }, "");
  refused([](auto& c) { c.num_processes = 0; }, "num_processes");
  refused([](auto& c) { c.fsdp.version = 7; }, "fsdp_version");
  refused([](auto& c) { c.fsdp.transformer_layer_cls_to_wrap = {"A,B"}; },
          "fsdp_transformer_layer_cls_to_wrap");
  refused([](auto& c) { c.fsdp.transformer_layer_cls_to_wrap = {" A"}; },
          "fsdp_transformer_layer_cls_to_wrap");
  refused([](auto& c) { c.foreign["tpu_name"] = "not JSON"; }, "");
  refused([](auto& c) { c.foreign["no_such_key"] = "1"; }, "no_such_key");
  refused([](auto& c) { c.foreign["tpu_name"] = "null"; }, "foreign");
}

TEST_CASE("a file is replaced whole: folders are made, links are followed, nothing is left over") {
  const accel_test::ScratchFolder folder;
  accel::Config config;
  config.num_processes = 3;
  const auto file = folder / "a/b/accel.yaml";
  accel::write_config(file, config);
  CHECK(accel::read_config(file).num_processes == 3);

  std::filesystem::create_symlink(file, folder / "link.yaml");
  config.num_processes = 4;
  accel::write_config(folder / "link.yaml", config);
  CHECK(std::filesystem::is_symlink(folder / "link.yaml"));
  CHECK(accel::read_config(file).num_processes == 4);

  const auto entries = std::filesystem::directory_iterator(folder / "a/b");
  CHECK(std::distance(begin(entries), end(entries)) == 1);

  CHECK_THROWS_MATCHES(accel::write_config(file / "below", config), accel::Error,
                       MessageMatches(ContainsSubstring("cannot be written")));
  std::filesystem::create_directory(folder / "taken.yaml");
  CHECK_THROWS_MATCHES(
      accel::write_config(folder / "taken.yaml", config), accel::Error,
      MessageMatches(ContainsSubstring("taken.yaml: this file cannot be written: ")));
  const auto left = std::filesystem::directory_iterator(folder.path());
  CHECK(std::distance(begin(left), end(left)) == 3);
}

}  // namespace
