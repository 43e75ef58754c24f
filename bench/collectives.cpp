// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives between the ranks of one host: shared memory, Gloo, Open MPI where the build has it,
// and a memcpy of the same bytes, by all ranks at once. In one run, call by call in a shuffled order,
// since what ran before a call leaves its mark on it. Before each call the owner writes its buffer
// anew, as a backward pass does. A call's time is that of the slowest rank; shown are medians.
//
//   bench_collectives --store FILE [--repetitions N] [--json FILE]     started by bench/collectives.sh
#include "statistics.hpp"

#include <accel/comm/ranks.hpp>
#include <accel/comm/shm_backend.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef ACCEL_BENCH_MPI
#include <mpi.h>
#endif

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

enum class Operation { all_reduce, all_gather, reduce_scatter };
constexpr const char* names[] = {"all_reduce", "all_gather", "reduce_scatter"};

/// Bytes are those of what a rank gives.
struct Row {
  Operation operation;
  int64_t bytes;
  int repetitions;
};

/// The buffers of a row: what is reduced in place or gathered, the same in shared memory, and the
/// large or small other end.
struct Buffers {
  at::Tensor input, shared, output;
  Buffers(const Row& row, accel::ShmBackend& shm, int ranks)
      : input(at::ones({row.bytes / 4})),
        shared(shm.allocateTensor(row.bytes / 4, at::kFloat)),
        output(row.operation == Operation::all_gather ? at::zeros({row.bytes / 4 * ranks})
                                                      : at::zeros({row.bytes / 4 / ranks})) {}
};

using Peer = std::function<void(const Row&, Buffers&)>;

/// The peer whose buffers lie in shared memory.
constexpr const char* in_place = "shared";

void through_c10d(c10d::Backend& backend, const Row& row, Buffers& buffers,
                  bool is_shared = false) {
  c10d::AllreduceOptions all_reduce;
  c10d::AllgatherOptions all_gather;
  c10d::ReduceScatterOptions reduce_scatter;
  all_reduce.asyncOp = all_gather.asyncOp = reduce_scatter.asyncOp = false;
  Tensors list{is_shared ? buffers.shared : buffers.input};
  switch (row.operation) {
    case Operation::all_reduce: backend.allreduce(list, all_reduce)->wait(); break;
    case Operation::all_gather:
      backend._allgather_base(buffers.output, buffers.input, all_gather)->wait();
      break;
    case Operation::reduce_scatter:
      backend._reduce_scatter_base(buffers.output, buffers.input, reduce_scatter)->wait();
      break;
  }
}

#ifdef ACCEL_BENCH_MPI
void through_mpi(const Row& row, Buffers& buffers) {
  auto* in = buffers.input.mutable_data_ptr<float>();
  auto* out = buffers.output.mutable_data_ptr<float>();
  const auto count = static_cast<int>(row.bytes / 4);
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  switch (row.operation) {
    case Operation::all_reduce:
      MPI_Allreduce(MPI_IN_PLACE, in, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case Operation::all_gather:
      MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case Operation::reduce_scatter:
      MPI_Reduce_scatter_block(in, out, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
  }
}
#endif

/// Each peer's times of a row, in microseconds, of the slowest rank.
std::map<std::string, std::vector<double>> measure(const Row& row,
                                                   const std::map<std::string, Peer>& peers,
                                                   accel::ShmBackend& clock) {
  Buffers buffers(row, clock, clock.getSize());
  std::vector<std::string> order;
  for (int i = 0; i < row.repetitions; ++i)
    for (const auto& [name, peer] : peers)
      if (name != in_place || row.operation == Operation::all_reduce) order.push_back(name);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  c10d::BarrierOptions barrier;
  barrier.asyncOp = false;
  std::vector<double> times;
  for (const auto& name : order) {
    (name == in_place ? buffers.shared : buffers.input).fill_(1);
    clock.barrier(barrier)->wait();
    const auto start = Clock::now();
    peers.at(name)(row, buffers);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  Tensors slowest{at::tensor(times, at::kDouble)};
  c10d::AllreduceOptions max;
  max.reduceOp = c10d::ReduceOp::MAX;
  clock.allreduce(slowest, max)->wait();
  std::map<std::string, std::vector<double>> of;
  for (std::size_t i = 0; i < order.size(); ++i)
    of[order[i]].push_back(slowest[0][static_cast<int64_t>(i)].item<double>());
  return of;
}

std::string size_text(int64_t bytes) {
  return bytes < 1 << 20 ? fmt::format("{}k", bytes >> 10) : fmt::format("{}m", bytes >> 20);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Collectives between the ranks of one host");
  int repetitions = 21;
  app.add_option("--repetitions", repetitions,
                 "of each call of 1 MiB and more; smaller ones more often");
  std::string store_file;
  app.add_option("--store", store_file, "a file, not there yet, through which the ranks meet")
      ->required();
  std::string json_file;
  app.add_option("--json", json_file, "where rank 0 writes the medians");
  CLI11_PARSE(app, argc, argv);
#ifdef ACCEL_BENCH_MPI
  MPI_Init(&argc, &argv);
#endif
  at::set_num_threads(1);
  const auto ranks = accel::discover_ranks();
  if (ranks.size < 2) {
    fmt::print(stderr, "start it with several ranks: tools/bench collectives\n");
    return 1;
  }
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::FileStore>(store_file, ranks.size);
  const auto prefix = [&](const char* name) {
    return c10::make_intrusive<c10d::PrefixStore>(name, store);
  };
  auto gloo_options = c10d::ProcessGroupGloo::Options::create();
  gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  c10d::ProcessGroupGloo gloo(prefix("gloo"), ranks.rank, ranks.size, gloo_options);
  accel::ShmBackend shm(prefix("shm"), ranks.rank, ranks.size,
                        c10::make_intrusive<accel::ShmBackend::Options>());

  std::map<std::string, Peer> peers{
      {"gloo", [&](const Row& row, Buffers& buffers) { through_c10d(gloo, row, buffers); }},
      {"shm", [&](const Row& row, Buffers& buffers) { through_c10d(shm, row, buffers); }},
      {in_place, [&](const Row& row, Buffers& buffers) { through_c10d(shm, row, buffers, true); }},
      {"memcpy", [copy = at::Tensor()](const Row& row, Buffers& buffers) mutable {
         if (!copy.defined() || copy.numel() != buffers.input.numel())
           copy = at::zeros_like(buffers.input);
         std::memcpy(copy.mutable_data_ptr(), buffers.input.const_data_ptr(),
                     static_cast<std::size_t>(row.bytes));
       }}};
#ifdef ACCEL_BENCH_MPI
  peers["mpi"] = through_mpi;
#endif

  const bool speaks = ranks.rank == 0;
  if (speaks) fmt::print("{} ranks; microseconds, medians\n{:>15} {:>6}", ranks.size, "", "");
  for (const auto& [name, peer] : peers)
    if (speaks) fmt::print("{:>10}", name);
  if (speaks) fmt::print("{:>12}{:>12}\n", "gloo/shm", "shm/memcpy");
  std::string figures;
  nlohmann::ordered_json rows;
  for (const auto operation :
       {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter})
    for (const int64_t bytes :
         {4LL << 10, 64LL << 10, 256LL << 10, 1LL << 20, 8LL << 20, 25LL << 20, 100LL << 20}) {
      const Row row{operation, bytes,
                    bytes < 1 << 20    ? repetitions * 10
                    : bytes < 50 << 20 ? repetitions
                                       : std::max(3, repetitions / 3)};
      std::map<std::string, double> median;
      for (const auto& [name, times] : measure(row, peers, shm))
        median[name] = bench::median(times);
      if (!speaks) continue;
      const auto* name = names[static_cast<int>(operation)];
      fmt::print("{:>15} {:>6}", name, size_text(bytes));
      for (const auto& [peer, call] : peers)
        fmt::print("{:>10}", median.contains(peer) ? fmt::format("{:.1f}", median[peer]) : "");
      fmt::print("{:>12.2f}{:>12.2f}\n", median["gloo"] / median["shm"],
                 median["shm"] / median["memcpy"]);
      std::fflush(stdout);
      rows.push_back({{"operation", name}, {"size", size_text(bytes)}, {"microseconds", median}});
      if (bytes != 25 << 20 && !(operation == Operation::all_reduce && bytes == 64 << 10)) continue;
      figures += fmt::format("figure collectives/{}_{}_vs_gloo {:.2f} ratio\n", name,
                             size_text(bytes), median["gloo"] / median["shm"]);
      if (median.contains(in_place) && bytes == 25 << 20)
        figures += fmt::format("figure collectives/{}_{}_shared_vs_gloo {:.2f} ratio\n", name,
                               size_text(bytes), median["gloo"] / median[in_place]) +
                   fmt::format("figure collectives/{}_{}_shared_vs_memcpy {:.2f} ratio\n", name,
                               size_text(bytes), median[in_place] / median["memcpy"]);
      if (median.contains("mpi"))
        figures += fmt::format("figure collectives/{}_{}_vs_mpi {:.2f} ratio\n", name,
                               size_text(bytes), median["mpi"] / median["shm"]);
    }
  fmt::print("{}", figures);
  if (speaks && !json_file.empty())
    std::ofstream(json_file) << nlohmann::ordered_json{{"ranks", ranks.size},
                                                       {"cores",
                                                        std::thread::hardware_concurrency()},
                                                       {"rows", rows}}
                                    .dump(2)
                             << '\n';
#ifdef ACCEL_BENCH_MPI
  MPI_Finalize();
#endif
  return 0;
}
