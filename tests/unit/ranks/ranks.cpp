// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Complete environments: those recorded from real launchers, and those that people make by hand.
#include "recorded.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using Catch::Matchers::ContainsSubstring;

TEST_CASE("an environment without a launcher is one process, and says nothing") {
  const Discovered found("HOME=/root\nOMP_NUM_THREADS=4");
  CHECK(found.ranks.rank == 0);
  CHECK(found.ranks.size == 1);
  CHECK(found.ranks.local_rank == 0);
  CHECK(found.ranks.local_size == 1);
  CHECK(found.ranks.launcher == "none");
  CHECK(found.ranks.master_addr.empty());
  CHECK(found.ranks.master_port == 0);
  CHECK(found.warnings.empty());
}

TEST_CASE("torchrun: the agent serves the store") {
  const Discovered found(recorded::torchrun_rank_1);
  CHECK(found.ranks.rank == 1);
  CHECK(found.ranks.size == 2);
  CHECK(found.ranks.local_rank == 1);
  CHECK(found.ranks.local_size == 2);
  CHECK(found.ranks.launcher == "torchrun");
  CHECK(found.ranks.master_addr == "127.0.0.1");
  CHECK(found.ranks.master_port == 29777);
  CHECK(found.ranks.agent_store);
  CHECK(found.ranks.restart_count == 0);
  CHECK_FALSE(found.ranks.store_fd);
  CHECK(found.warnings.empty());
}

TEST_CASE("torchrun: a restarted attempt, and an agent without a store") {
  FakeEnvironment environment(recorded::torchrun_rank_1);
  environment.set("TORCHELASTIC_RESTART_COUNT", "3");
  CHECK(Discovered(environment).ranks.restart_count == 3);
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "False");
  CHECK_FALSE(Discovered(environment).ranks.agent_store);
}

TEST_CASE("accelerate launch --multi_gpu is torchrun") {
  const Discovered found(recorded::accelerate_multi_gpu_rank_0);
  CHECK(found.ranks.rank == 0);
  CHECK(found.ranks.size == 2);
  CHECK(found.ranks.launcher == "torchrun");
  CHECK(found.ranks.master_port == 29778);
  CHECK(found.ranks.agent_store);
  CHECK(found.warnings.empty());
}

TEST_CASE("accelerate launch --cpu starts one process, and the warning says so") {
  const Discovered found(recorded::accelerate_cpu);
  CHECK(found.ranks.size == 1);
  CHECK(found.ranks.launcher == "none");
  REQUIRE(found.warnings.size() == 1);
  CHECK_THAT(found.warnings[0], ContainsSubstring("MASTER_PORT is 29500, but RANK is not set"));
  CHECK_THAT(found.warnings[0], ContainsSubstring("--num_processes"));
  CHECK_THAT(found.warnings[0], ContainsSubstring("accel-launch"));
}

TEST_CASE("accelerate launch --cpu --mpirun_hostfile is Open MPI with a meeting point") {
  const Discovered found(recorded::accelerate_mpirun_rank_1);
  CHECK(found.ranks.rank == 1);
  CHECK(found.ranks.size == 2);
  CHECK(found.ranks.local_rank == 1);
  CHECK(found.ranks.local_size == 2);
  CHECK(found.ranks.launcher == "openmpi");
  CHECK(found.ranks.master_addr == "127.0.0.1");
  CHECK(found.ranks.master_port == 29500);
  CHECK_FALSE(found.ranks.agent_store);
  CHECK(found.warnings.empty());
}

TEST_CASE("mpirun: both ranks come to the same meeting point, and another job to another one") {
  const Discovered first(recorded::mpirun_rank_0);
  const Discovered second(recorded::mpirun_rank_1);
  CHECK(first.ranks.rank == 0);
  CHECK(second.ranks.rank == 1);
  CHECK(second.ranks.local_rank == 1);
  CHECK(second.ranks.local_size == 2);
  CHECK(second.ranks.launcher == "openmpi");
  CHECK(first.ranks.master_addr == "127.0.0.1");
  CHECK(second.ranks.master_addr == "127.0.0.1");
  CHECK(first.ranks.master_port == second.ranks.master_port);
  CHECK(first.ranks.master_port >= 20000);
  CHECK(first.ranks.master_port < 30000);
  CHECK(first.warnings.empty());

  FakeEnvironment other(recorded::mpirun_rank_0);
  other.set("PMIX_NAMESPACE", "1245904897");  // the job that was started next
  CHECK(Discovered(other).ranks.master_port != first.ranks.master_port);
  other.variables.erase("PMIX_NAMESPACE");
  CHECK(Discovered(other).ranks.master_port == accel::default_master_port);
}

TEST_CASE("mpirun: the meeting point can be given") {
  FakeEnvironment environment(recorded::mpirun_rank_1);
  environment.set("ACCEL_MAIN_PROCESS_IP", "node7");
  environment.set("ACCEL_MAIN_PROCESS_PORT", "4711");
  CHECK(Discovered(environment).ranks.master_addr == "node7");
  CHECK(Discovered(environment).ranks.master_port == 4711);
  environment.set("MASTER_ADDR", "node8");
  environment.set("MASTER_PORT", "4712");
  CHECK(Discovered(environment).ranks.master_addr == "node8");
  CHECK(Discovered(environment).ranks.master_port == 4712);
}

TEST_CASE("accel-launch: rank 0 inherits the socket of the store") {
  const std::string common = "WORLD_SIZE=2\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=127.0.0.1\nMASTER_PORT="
                             "41234\nACCEL_LAUNCHER=accel-launch\n";
  const Discovered first(common + "RANK=0\nLOCAL_RANK=0\nACCEL_STORE_FD=5");
  CHECK(first.ranks.launcher == "accel-launch");
  CHECK(first.ranks.store_fd == 5);
  CHECK(first.ranks.master_port == 41234);
  CHECK_FALSE(first.ranks.agent_store);
  const Discovered second(common + "RANK=1\nLOCAL_RANK=1");
  CHECK(second.ranks.launcher == "accel-launch");
  CHECK_FALSE(second.ranks.store_fd);
}

TEST_CASE("torchrun inside a rank of accel-launch: the inner launcher is believed") {
  FakeEnvironment environment(recorded::torchrun_rank_1);
  environment.set("ACCEL_LAUNCHER", "accel-launch");
  environment.set("ACCEL_STORE_FD", "5");
  const Discovered found(environment);
  CHECK(found.ranks.launcher == "torchrun");
  CHECK(found.ranks.agent_store);
  CHECK_FALSE(found.ranks.store_fd);
}

TEST_CASE("torchrun on each node of an MPI job: RANK before Open MPI's") {
  FakeEnvironment environment(recorded::mpirun_rank_1);
  for (const auto& [name, value] : FakeEnvironment(recorded::torchrun_rank_1).variables)
    environment.set(name, value);
  environment.set("RANK", "3");
  environment.set("WORLD_SIZE", "4");
  const Discovered found(environment);
  CHECK(found.ranks.launcher == "torchrun");
  CHECK(found.ranks.rank == 3);
  CHECK(found.ranks.size == 4);
  CHECK(found.ranks.local_rank == 1);
  CHECK(found.warnings.empty());
}

TEST_CASE("MVAPICH and MPICH give the same numbers under names of their own") {
  const Discovered mvapich("MV2_COMM_WORLD_RANK=3\nMV2_COMM_WORLD_SIZE=4\nMV2_COMM_WORLD_LOCAL_"
                           "RANK=3\nMV2_COMM_WORLD_LOCAL_SIZE=4");
  CHECK(mvapich.ranks.launcher == "mvapich");
  CHECK(mvapich.ranks.rank == 3);
  CHECK(mvapich.ranks.local_rank == 3);
  const Discovered mpich("PMI_RANK=2\nPMI_SIZE=4\nMPI_LOCALRANKID=2\nMPI_LOCALNRANKS=4");
  CHECK(mpich.ranks.launcher == "mpich");
  CHECK(mpich.ranks.rank == 2);
  CHECK(mpich.ranks.local_size == 4);
  CHECK(mpich.ranks.master_port == accel::default_master_port);
  CHECK(mpich.warnings.empty());
}

TEST_CASE("RANK and WORLD_SIZE alone: one host if the master is on a loopback address, else one "
          "process a host") {
  const Discovered here("RANK=1\nWORLD_SIZE=3\nMASTER_ADDR=localhost\nMASTER_PORT=4000");
  CHECK(here.ranks.local_rank == 1);
  CHECK(here.ranks.local_size == 3);
  const Discovered pods("RANK=1\nWORLD_SIZE=3\nMASTER_ADDR=job-master-0\nMASTER_PORT=4000");
  CHECK(pods.ranks.local_rank == 0);
  CHECK(pods.ranks.local_size == 1);
  CHECK(pods.ranks.master_addr == "job-master-0");
  CHECK(pods.warnings.empty());
  const Discovered no_local_size(
      "RANK=1\nWORLD_SIZE=3\nLOCAL_RANK=1\nMASTER_ADDR=127.0.0.1\nMASTER_PORT=4000");
  CHECK(no_local_size.ranks.local_size == 3);
}

TEST_CASE("a world of one needs no meeting point") {
  const Discovered found("RANK=0\nWORLD_SIZE=1\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=1");
  CHECK(found.ranks.size == 1);
  CHECK(found.ranks.launcher == "torchrun");
  CHECK(found.ranks.master_addr.empty());
  CHECK(found.ranks.master_port == 0);
  CHECK(found.warnings.empty());
}
