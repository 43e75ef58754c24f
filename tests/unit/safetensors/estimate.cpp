// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How large a model is, from the names and shapes of its weights, and what accel-estimate makes of
// it.
#include "support/scratch_folder.hpp"

#include <accel/checkpoint/model_size.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_all.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>

#include <sys/wait.h>

using accel::model_size;
using accel::SafetensorsEntry;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A decoder of two equal blocks, each with a list of two layers of equal names but other shapes.
const std::vector<SafetensorsEntry> decoder{
    {"embedding.weight", "F32", {100, 8}},  // the root's, 800
    {"blocks.0.norm.weight", "F32", {8}},   // a block's own: 8 and 72
    {"blocks.0.attention.weight", "F32", {8, 9}},
    {"blocks.0.mlp.0.weight", "F32", {8, 32}},  // 256
    {"blocks.0.mlp.2.weight", "F32", {32, 9}},  // 288
    {"blocks.1.norm.weight", "F32", {8}},
    {"blocks.1.attention.weight", "F32", {8, 9}},
    {"blocks.1.mlp.0.weight", "F32", {8, 32}},
    {"blocks.1.mlp.2.weight", "F32", {32, 9}},
    {"steps", "I64", {}},  // no weight
};

struct Run {
  int status = 0;
  std::string output;
};

Run estimate(const std::string& arguments) {
  Run run;
  FILE* pipe =
      ::popen((ACCEL_BINARY_DIR "/bin/accel-estimate " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  std::array<char, 4096> part;
  while (const auto size = std::fread(part.data(), 1, part.size(), pipe))
    run.output.append(part.data(), size);
  run.status = WEXITSTATUS(::pclose(pipe));
  return run;
}

}  // namespace

TEST_CASE("a unit is what repeats in a list, the outermost one, or what is left over") {
  CHECK(model_size(decoder).parameters == 800 + 2 * (80 + 256 + 288));
  CHECK(model_size(decoder).largest_unit == 800);
  const std::vector<SafetensorsEntry> blocks(decoder.begin() + 1, decoder.end());
  CHECK(model_size(blocks).largest_unit == 80 + 256 + 288);
  // Without a sibling of the same names a numbered child is no unit.
  CHECK(
      model_size({{"layers.0.weight", "F32", {4}}, {"layers.1.other", "F32", {5}}}).largest_unit ==
      9);
  CHECK(model_size(std::vector<SafetensorsEntry>{}).parameters == 0);
}

TEST_CASE("accel-estimate prints the bytes of every strategy, and what fits") {
  const auto run = estimate("--parameters 1000 --largest_unit 100 --num_processes 4 --json "
                            "--memory 10kB");
  INFO(run.output);
  REQUIRE(run.status == 0);
  const auto strategies = nlohmann::json::parse(run.output).at("strategies");
  CHECK(strategies.size() == 7);
  const auto& on_disk = strategies.at("sharded<zero3> offload<optimizer_state, parameters>");
  CHECK(on_disk.at("offloaded") == 3000);
  CHECK(on_disk.at("peak") == 1000 + 2 * 400 + 4 * 400);
  CHECK(strategies.at("ddp").at("peak") == 16000);
  CHECK(strategies.at("ddp").at("fits") == false);
  CHECK(strategies.at("sharded<zero3>").at("parameters") == 1000);
  CHECK(strategies.at("sharded<zero3>").at("peak") == 4000 + 2 * 400 + 4 * 400);
  CHECK(strategies.at("sharded<zero3>").at("fits") == true);
}

TEST_CASE("accel-estimate reads the header of a file, and prints a table") {
  const accel_test::ScratchFolder scratch;
  const auto file = (scratch / "model.safetensors").string();
  const auto header =
      accel::format_safetensors_header(accel::lay_out_safetensors(decoder, {}, file), file);
  {
    std::ofstream stream(file, std::ios::binary);
    stream << header;
    stream << std::string(4 * (800 + 2 * (80 + 256 + 288)) + 8, '\0');
  }
  const auto run = estimate(file + " --num_processes 2 --optimizer sgd");
  INFO(run.output);
  CHECK(run.status == 0);
  CHECK_THAT(run.output, ContainsSubstring("2048 parameters, the largest unit 800; fp32, sgd"));
  CHECK_THAT(run.output, ContainsSubstring("sharded<fsdp_zero2>"));
}

TEST_CASE("accel-estimate says what it cannot take") {
  const auto error = [](const std::string& arguments) {
    const auto run = estimate(arguments);
    CHECK(run.status != 0);
    return run.output;
  };
  CHECK_THAT(error(""), ContainsSubstring("either a .safetensors file or --parameters"));
  CHECK_THAT(error("/nowhere.safetensors"), ContainsSubstring("/nowhere.safetensors"));
  CHECK_THAT(error("--parameters 10 --largest_unit 11"), ContainsSubstring("--largest_unit is 11"));
  CHECK_THAT(error("--parameters 10 --num_processes 4 --group_size 3"),
             ContainsSubstring("--group_size is 3"));
  CHECK_THAT(error("--parameters 10 --optimizer lion"), ContainsSubstring("lion"));
}
