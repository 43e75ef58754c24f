// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Environments that cannot be right: an error that names the variable, its value and the fix.
#include "recorded.hpp"

#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using Catch::Matchers::ContainsSubstring;

namespace {

struct Wrong {
  std::string lines;  ///< beside a complete environment of rank 1 of 2
  std::vector<std::string> says;
};

const std::string complete = "RANK=1\nWORLD_SIZE=2\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR="
                             "127.0.0.1\nMASTER_PORT=4000\n";

std::string error_of(const FakeEnvironment& environment) {
  try {
    accel::discover_ranks(environment);
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::config);
    return error.what();
  }
  return "(no error)";
}

}  // namespace

TEST_CASE("values that are no numbers, or out of range") {
  const auto wrong = GENERATE(values<Wrong>({
      {"RANK=two", {"RANK is 'two'", "whole number"}},
      {"RANK=", {"RANK is ''", "whole number"}},
      {"RANK=-1", {"RANK is '-1'", "at least 0"}},
      {"RANK=1.0", {"RANK is '1.0'"}},
      {"RANK= 1", {"RANK is ' 1'"}},
      {"RANK=99999999999999999999", {"RANK is '99999999999999999999'"}},
      {"WORLD_SIZE=many", {"WORLD_SIZE is 'many'"}},
      {"WORLD_SIZE=0", {"WORLD_SIZE is '0'", "from 1 to 1048576"}},
      {"LOCAL_RANK=x", {"LOCAL_RANK is 'x'"}},
      {"LOCAL_WORLD_SIZE=0", {"LOCAL_WORLD_SIZE is '0'", "from 1 to 1048576"}},
      {"MASTER_PORT=http", {"MASTER_PORT is 'http'", "1 to 65535"}},
      {"MASTER_PORT=0", {"MASTER_PORT is '0'", "1 to 65535"}},
      {"MASTER_PORT=65536", {"MASTER_PORT is '65536'"}},
      {"MASTER_ADDR=", {"MASTER_ADDR is empty"}},
      {"TORCHELASTIC_RUN_ID=x\nTORCHELASTIC_RESTART_COUNT=first",
       {"TORCHELASTIC_RESTART_COUNT is 'first'"}},
      {"ACCEL_LAUNCHER=accel-launch\nRANK=0\nLOCAL_RANK=0\nACCEL_STORE_FD=stdin",
       {"ACCEL_STORE_FD is 'stdin'"}},
  }));
  CAPTURE(wrong.lines);
  const auto error = error_of(FakeEnvironment(complete + wrong.lines));
  for (const auto& part : wrong.says) CHECK_THAT(error, ContainsSubstring(part));
}

TEST_CASE("values that contradict each other") {
  const auto wrong = GENERATE(values<Wrong>({
      {"RANK=2", {"RANK is 2", "WORLD_SIZE is 2", "ranks 0 to 1"}},
      {"LOCAL_RANK=2", {"LOCAL_RANK is 2", "LOCAL_WORLD_SIZE", "0 to 1"}},
      {"LOCAL_WORLD_SIZE=3", {"LOCAL_WORLD_SIZE is 3", "2 processes", "WORLD_SIZE"}},
      {"ACCEL_LAUNCHER=accel-launch\nACCEL_STORE_FD=5",
       {"ACCEL_STORE_FD is 5", "RANK is 1", "unset ACCEL_STORE_FD"}},
  }));
  CAPTURE(wrong.lines);
  const auto error = error_of(FakeEnvironment(complete + wrong.lines));
  for (const auto& part : wrong.says) CHECK_THAT(error, ContainsSubstring(part));
}

TEST_CASE("a rank above 0 without a world does not work alone") {
  const auto error = error_of(FakeEnvironment("RANK=1\nMASTER_ADDR=127.0.0.1\nMASTER_PORT=4000"));
  CHECK_THAT(error, ContainsSubstring("RANK is 1") && ContainsSubstring("WORLD_SIZE is not set"));
  const auto mpi = error_of(FakeEnvironment("OMPI_COMM_WORLD_RANK=1"));
  CHECK_THAT(mpi, ContainsSubstring("OMPI_COMM_WORLD_RANK is 1") &&
                      ContainsSubstring("OMPI_COMM_WORLD_SIZE is not set"));
}

TEST_CASE("WORLD_SIZE against Open MPI's") {
  FakeEnvironment environment(recorded::mpirun_rank_1);
  environment.set("WORLD_SIZE", "2");
  CHECK(accel::discover_ranks(environment).size == 2);
  environment.set("WORLD_SIZE", "4");
  CHECK_THAT(error_of(environment), ContainsSubstring("OMPI_COMM_WORLD_SIZE is 2") &&
                                        ContainsSubstring("WORLD_SIZE is 4") &&
                                        ContainsSubstring("unset WORLD_SIZE"));
}

TEST_CASE("a job on several hosts has to say where rank 0 is") {
  FakeEnvironment environment(recorded::mpirun_rank_1);
  environment.set("OMPI_COMM_WORLD_SIZE", "4");
  CHECK_THAT(error_of(environment), ContainsSubstring("MASTER_ADDR is not set") &&
                                        ContainsSubstring("2 processes on this host") &&
                                        ContainsSubstring("mpirun -x MASTER_ADDR"));
  CHECK_THAT(error_of(FakeEnvironment("RANK=1\nWORLD_SIZE=2\nMASTER_PORT=4000")),
             ContainsSubstring("MASTER_ADDR is not set"));
}

TEST_CASE("half of the local numbers, where they cannot be inferred") {
  CHECK_THAT(
      error_of(FakeEnvironment(
          "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nMASTER_ADDR=node1\nMASTER_PORT=4000")),
      ContainsSubstring("LOCAL_RANK is 1") && ContainsSubstring("LOCAL_WORLD_SIZE is not set"));
  CHECK_THAT(
      error_of(FakeEnvironment(
          "RANK=1\nWORLD_SIZE=4\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=node1\nMASTER_PORT=4000")),
      ContainsSubstring("LOCAL_WORLD_SIZE is 2") && ContainsSubstring("LOCAL_RANK is not set"));
}
