// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A rank of a sharded training that is killed, or throws, in forward, backward or before the step:
// the others are told so, in time. Each rank is this program again, as the hidden case "a rank".
#include "support/scratch_folder.hpp"
#include "support/small_models.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

constexpr int ranks = 3, dying = 1, last_step = 3;
constexpr double timeout = 20;  // of a collective, in seconds

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// What one rank does, and where it dies.
class Rank {
 public:
  explicit Rank(int rank) : rank_(rank) {}

  void train() {
    const auto store =
        c10::make_intrusive<c10d::FileStore>(variable("DEATHS_FOLDER") + "/store", ranks);
    accel::CommunicatorOptions options;
    options.collective_timeout = std::chrono::seconds(static_cast<int>(timeout));
    const accel::Ranks of{.rank = rank_, .size = ranks, .local_rank = rank_, .local_size = ranks};
    const accel::PartialState state(
        accel::Communicator::over_store(store, of, c10::DeviceType::CPU, options, "deaths"),
        c10::Device(c10::kCPU));
    accel::Accelerator<accel::full_shard, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
        accelerator(state);
    auto net = std::make_shared<accel::test::SmallMlp>();
    accel::test::fill_parameters(*net);
    torch::optim::AdamW adamw(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    for (int step = 0; step < 10 * last_step; ++step) {
      auto hidden = at::relu(model->first(accel::test::normal({16, 20}, 1)));
      die(step, "forward");
      hidden = model->middle->forward(hidden);
      hidden.register_hook([&](const at::Tensor&) { die(step, "backward"); });
      accelerator.backward(model->last(hidden).square().mean());
      die(step, "step");
      optimizer.step();
      optimizer.zero_grad();
    }
  }

 private:
  void die(int step, const std::string& where) const {
    if (rank_ != dying || step != last_step || where != variable("DEATHS_WHERE")) return;
    std::ofstream(variable("DEATHS_FOLDER") + "/died") << std::fixed << now();
    if (variable("DEATHS_HOW") == "kill") ::raise(SIGKILL);
    throw std::runtime_error("no such file: rank 1's data");
  }

  int rank_;
};

/// How a rank ended: the signal that killed it, or what it threw, and when.
struct End {
  int signal = 0;
  double time = 0;
  std::string error;
};

pid_t start(int rank, const std::filesystem::path& folder, const std::string& how,
            const std::string& where, const std::string& transport) {
  std::vector<std::string> variables{"DEATHS_RANK=" + std::to_string(rank),
                                     "DEATHS_FOLDER=" + folder.string(),
                                     "DEATHS_HOW=" + how,
                                     "DEATHS_WHERE=" + where,
                                     "ACCEL_TRANSPORT=" + transport,
                                     "OMP_NUM_THREADS=1"};
  for (const auto* name : {"PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "LSAN_OPTIONS"})
    if (const auto value = variable(name); !value.empty())
      variables.push_back(std::string(name) + "=" + value);
  std::vector<char*> environment;
  for (auto& each : variables) environment.push_back(each.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", name = "a rank", quiet = "--out=/dev/null";
  char* arguments[] = {program.data(), name.data(), quiet.data(), nullptr};
  pid_t process = -1;
  if (::posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments, environment.data()) !=
      0)
    throw std::runtime_error("a rank could not be started");
  return process;
}

std::vector<End> run(const std::filesystem::path& folder, const std::string& how,
                     const std::string& where, const std::string& transport) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank)
    processes.push_back(start(rank, folder, how, where, transport));
  std::vector<End> ends(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    ::waitpid(processes[static_cast<size_t>(rank)], &status, 0);
    auto& end = ends[static_cast<size_t>(rank)];
    end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    std::ifstream report(folder / ("rank" + std::to_string(rank)));
    report >> end.time;
    std::getline(report >> std::ws, end.error, '\0');
  }
  return ends;
}

}  // namespace

TEST_CASE("a rank", "[.]") {
  const auto rank = variable("DEATHS_RANK");
  if (rank.empty()) SKIP("is run by the other cases");
  ::alarm(100);
  std::string error;
  try {
    Rank(std::stoi(rank)).train();
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  std::ofstream(variable("DEATHS_FOLDER") + "/rank" + rank) << std::fixed << now() << ' ' << error;
}

TEST_CASE("a rank of a sharded training that dies or throws is told to the others") {
  const auto transport = GENERATE(as<std::string>{}, "shared_memory", "gloo");
  const auto how = GENERATE(as<std::string>{}, "kill", "throw");
  const auto where = GENERATE(as<std::string>{}, "forward", "backward", "step");
  CAPTURE(transport, how, where);
  const accel_test::ScratchFolder folder;
  const auto ends = run(folder.path(), how, where, transport);
  double died = 0;
  std::ifstream(folder.path() / "died") >> died;
  REQUIRE(died > 0);
  const bool kills = how == "kill";
  CHECK(ends[dying].signal == (kills ? SIGKILL : 0));
  if (!kills) CHECK_THAT(ends[dying].error, ContainsSubstring("no such file: rank 1's data"));
  for (const int rank : {0, 2}) {
    const auto& end = ends[static_cast<size_t>(rank)];
    CAPTURE(rank, end.error, end.time - died);
    CHECK(end.signal == 0);
    CHECK_THAT(end.error, StartsWith("accel: rank " + std::to_string(rank)));
    // Shared memory knows the process; Gloo that a connection has closed.
    if (transport == "shared_memory") CHECK_THAT(end.error, ContainsSubstring("rank 1"));
    CHECK(end.time > died);
    CHECK(end.time - died < timeout);
  }
}
