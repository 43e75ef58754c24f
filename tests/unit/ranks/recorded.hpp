// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What real launchers give the processes that they start: printed by `env` in a process of each,
// cut down to the variables that speak of processes. torch 2.11.0, accelerate 1.15.0, Open
// MPI 4.1.4.
#pragma once

#include <accel/comm/ranks.hpp>

#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace recorded {

// torchrun --no-python --nproc-per-node 2 --master-port 29777 sh -c env
inline constexpr const char* torchrun_rank_1 = R"(GROUP_RANK=0
GROUP_WORLD_SIZE=1
LOCAL_RANK=1
LOCAL_WORLD_SIZE=2
MASTER_ADDR=127.0.0.1
MASTER_PORT=29777
OMP_NUM_THREADS=1
RANK=1
ROLE_NAME=default
ROLE_RANK=1
ROLE_WORLD_SIZE=2
TORCHELASTIC_ERROR_FILE=/tmp/torchelastic_0b1ba02n/none_onpniqfj/attempt_0/1/error.json
TORCHELASTIC_MAX_RESTARTS=0
TORCHELASTIC_RESTART_COUNT=0
TORCHELASTIC_RUN_ID=none
TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
TORCHELASTIC_USE_AGENT_STORE=True
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
WORLD_SIZE=2)";

// accelerate launch --no_python --multi_gpu --num_processes 2 --main_process_port 29778 sh -c env
inline constexpr const char* accelerate_multi_gpu_rank_0 = R"(ACCELERATE_DYNAMO_BACKEND=NO
ACCELERATE_DYNAMO_MODE=default
ACCELERATE_DYNAMO_USE_DYNAMIC=False
ACCELERATE_DYNAMO_USE_FULLGRAPH=False
ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False
ACCELERATE_MIXED_PRECISION=no
GROUP_RANK=0
GROUP_WORLD_SIZE=1
LOCAL_RANK=0
LOCAL_WORLD_SIZE=2
MASTER_ADDR=127.0.0.1
MASTER_PORT=29778
OMP_NUM_THREADS=1
RANK=0
ROLE_NAME=default
ROLE_RANK=0
ROLE_WORLD_SIZE=2
TORCHELASTIC_ERROR_FILE=/tmp/torchelastic_001aoj55/none_wdcx77rn/attempt_0/0/error.json
TORCHELASTIC_MAX_RESTARTS=0
TORCHELASTIC_RESTART_COUNT=0
TORCHELASTIC_RUN_ID=none
TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
TORCHELASTIC_USE_AGENT_STORE=True
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
WORLD_SIZE=2)";

// accelerate launch --no_python --cpu --num_processes 2 sh -c env (one process in all)
inline constexpr const char* accelerate_cpu = R"(ACCELERATE_DYNAMO_BACKEND=NO
ACCELERATE_DYNAMO_MODE=default
ACCELERATE_DYNAMO_USE_DYNAMIC=False
ACCELERATE_DYNAMO_USE_FULLGRAPH=False
ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False
ACCELERATE_MIXED_PRECISION=no
ACCELERATE_USE_CPU=True
KMP_AFFINITY=granularity=fine,compact,1,0
KMP_BLOCKTIME=1
MASTER_ADDR=127.0.0.1
MASTER_PORT=29500
OMP_NUM_THREADS=1)";

// accelerate launch --no_python --cpu --num_processes 2 --mpirun_hostfile hosts sh -c env
inline constexpr const char* accelerate_mpirun_rank_1 = R"(ACCELERATE_DYNAMO_BACKEND=NO
ACCELERATE_DYNAMO_MODE=default
ACCELERATE_DYNAMO_USE_DYNAMIC=False
ACCELERATE_DYNAMO_USE_FULLGRAPH=False
ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False
ACCELERATE_MIXED_PRECISION=no
ACCELERATE_USE_CPU=True
KMP_AFFINITY=granularity=fine,compact,1,0
KMP_BLOCKTIME=1
MASTER_ADDR=127.0.0.1
MASTER_PORT=29500
OMPI_COMMAND=sh
OMPI_COMM_WORLD_LOCAL_RANK=1
OMPI_COMM_WORLD_LOCAL_SIZE=2
OMPI_COMM_WORLD_NODE_RANK=1
OMPI_COMM_WORLD_RANK=1
OMPI_COMM_WORLD_SIZE=2
OMPI_MCA_ess_base_jobid=1265696769
OMPI_MCA_ess_base_vpid=1
OMPI_MCA_orte_num_nodes=1
OMPI_UNIVERSE_SIZE=2
OMP_NUM_THREADS=1
PMIX_ID=1265696769.1
PMIX_NAMESPACE=1265696769
PMIX_RANK=1)";

// mpirun -np 2 sh -c env, rank 0
inline constexpr const char* mpirun_rank_0 = R"(OMPI_COMMAND=sh
OMPI_COMM_WORLD_LOCAL_RANK=0
OMPI_COMM_WORLD_LOCAL_SIZE=2
OMPI_COMM_WORLD_NODE_RANK=0
OMPI_COMM_WORLD_RANK=0
OMPI_COMM_WORLD_SIZE=2
OMPI_MCA_ess_base_jobid=1245839361
OMPI_MCA_ess_base_vpid=0
OMPI_MCA_orte_num_nodes=1
OMPI_UNIVERSE_SIZE=2
PMIX_ID=1245839361.0
PMIX_NAMESPACE=1245839361
PMIX_RANK=0)";

// the same job, rank 1
inline constexpr const char* mpirun_rank_1 = R"(OMPI_COMMAND=sh
OMPI_COMM_WORLD_LOCAL_RANK=1
OMPI_COMM_WORLD_LOCAL_SIZE=2
OMPI_COMM_WORLD_NODE_RANK=1
OMPI_COMM_WORLD_RANK=1
OMPI_COMM_WORLD_SIZE=2
OMPI_MCA_ess_base_jobid=1245839361
OMPI_MCA_ess_base_vpid=1
OMPI_MCA_orte_num_nodes=1
OMPI_UNIVERSE_SIZE=2
PMIX_ID=1245839361.1
PMIX_NAMESPACE=1245839361
PMIX_RANK=1)";

}  // namespace recorded

/// An environment for discover_ranks, from lines of NAME=value.
struct FakeEnvironment {
  explicit FakeEnvironment(const std::string& lines) {
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line);)
      if (const auto equals = line.find('='); equals != std::string::npos)
        set(line.substr(0, equals), line.substr(equals + 1));
  }

  std::optional<std::string> operator()(const std::string& name) const {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  }

  void set(const std::string& name, std::string value) {
    variables.insert_or_assign(name, std::move(value));
  }

  std::map<std::string, std::string> variables;
};

/// What discover_ranks says of an environment.
struct Discovered {
  explicit Discovered(const FakeEnvironment& environment)
      : ranks(accel::discover_ranks(
            environment, [this](const std::string& warning) { warnings.push_back(warning); })) {}
  explicit Discovered(const std::string& lines) : Discovered(FakeEnvironment(lines)) {}

  std::vector<std::string> warnings;
  accel::Ranks ranks;
};
