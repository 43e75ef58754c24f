// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A launcher's variables that are half there: one process and one sentence, never a guess that
// ranks would make differently.
#include "recorded.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using Catch::Matchers::ContainsSubstring;

namespace {

struct HalfPresent {
  std::string lines;
  std::vector<std::string> says;
};

}  // namespace

TEST_CASE(
    "half of a launcher's variables: one process and one warning that names variable and fix") {
  const auto half = GENERATE(values<HalfPresent>({
      {"MASTER_PORT=29500", {"MASTER_PORT is 29500", "RANK is not set", "unset MASTER_PORT"}},
      {"MASTER_ADDR=node1", {"MASTER_ADDR is node1", "RANK is not set"}},
      {"WORLD_SIZE=4",
       {"WORLD_SIZE is 4", "RANK is not set", "--num_processes 4", "unset WORLD_SIZE"}},
      {"WORLD_SIZE=four", {"WORLD_SIZE is four", "RANK is not set"}},
      {"OMPI_COMM_WORLD_SIZE=2", {"OMPI_COMM_WORLD_SIZE is 2", "OMPI_COMM_WORLD_RANK is not set"}},
      {"LOCAL_RANK=1", {"LOCAL_RANK is 1", "RANK is not set"}},
      {"RANK=0", {"RANK is set", "WORLD_SIZE is not", "unset RANK"}},
      {"RANK=0\nMASTER_ADDR=node1\nMASTER_PORT=29500", {"RANK is set", "WORLD_SIZE is not"}},
      {"SLURM_PROCID=1\nSLURM_STEP_NUM_TASKS=2", {"srun started 2 tasks", "RANK is not set"}},
  }));
  CAPTURE(half.lines);
  const Discovered found(half.lines);
  CHECK(found.ranks.size == 1);
  CHECK(found.ranks.rank == 0);
  CHECK(found.ranks.launcher == "none");
  REQUIRE(found.warnings.size() == 1);
  for (const auto& part : half.says) CHECK_THAT(found.warnings[0], ContainsSubstring(part));
  CHECK_THAT(found.warnings[0], ContainsSubstring("one process"));
}

TEST_CASE("what a shell or a batch script of one process leaves behind is no reason to warn") {
  const auto* lines =
      GENERATE("WORLD_SIZE=1", "SLURM_PROCID=0\nSLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=1",
               "OMP_NUM_THREADS=2", "OMPI_MCA_btl=tcp,self");
  CAPTURE(lines);
  CHECK(Discovered(std::string(lines)).warnings.empty());
}

TEST_CASE("a job without MASTER_PORT meets on the default port, with a warning") {
  const Discovered found(
      "RANK=1\nWORLD_SIZE=2\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=127.0.0.1");
  CHECK(found.ranks.size == 2);
  CHECK(found.ranks.master_port == accel::default_master_port);
  REQUIRE(found.warnings.size() == 1);
  CHECK_THAT(found.warnings[0], ContainsSubstring("MASTER_PORT is not set") &&
                                    ContainsSubstring("29500") && ContainsSubstring("rank 1 of 2"));
}

TEST_CASE("nobody has to listen to warnings") {
  CHECK(accel::discover_ranks(FakeEnvironment("MASTER_PORT=29500")).size == 1);
}
