// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a program asks about its processes, and what runs on which of them.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::results_of_ranks;
using accel::test::run_ranks;
using Words = std::vector<std::string>;

namespace {

/// What `state`, a PartialState or an Accelerator, says of this process, and which functions it runs.
template <class State>
Words told_by(const State& state) {
  Words words{fmt::format("{} of {}, {} here", state.process_index(), state.num_processes(),
                          state.local_process_index())};
  if (state.is_main_process()) words.push_back("main");
  if (state.is_local_main_process()) words.push_back("local main");
  if (state.is_last_process()) words.push_back("last");
  state.on_main_process([&] { words.push_back("on_main"); });
  state.on_local_main_process([&] { words.push_back("on_local_main"); });
  state.on_last_process([&] { words.push_back("on_last"); });
  state.on_process(1, [&] { words.push_back("on_1"); });
  return words;
}

const std::vector<Words> three_ranks{
    {"0 of 3, 0 here", "main", "local main", "on_main", "on_local_main"},
    {"1 of 3, 1 here", "on_1"},
    {"2 of 3, 2 here", "last", "on_last"}};

}  // namespace

TEST_CASE("each process knows its place, and functions run on the processes that they are for") {
  CHECK(results_of_ranks<Words>(3, [](const PartialState& state) { return told_by(state); }) ==
        three_ranks);
  CHECK(results_of_ranks<Words>(3, [](const PartialState& state) {
          const Ddp<accel::accumulate<1>> accelerator{state};
          return told_by(accelerator);
        }) == three_ranks);
}

TEST_CASE("one process is main, local main and last") {
  CHECK(results_of_ranks<Words>(1, [](const PartialState& state) { return told_by(state); }) ==
        std::vector<Words>{{"0 of 1, 0 here", "main", "local main", "last", "on_main",
                            "on_local_main", "on_last"}});
}

TEST_CASE("main_process_first: the others begin when the main process has ended") {
  std::atomic<int> clock{0};
  std::vector<int> began(3), ended(3);
  run_ranks(3, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    state.main_process_first([&] {
      began[rank] = clock++;
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ended[rank] = clock++;
    });
  });
  CHECK(began[0] == 0);
  CHECK(ended[0] == 1);
  CHECK(std::min(began[1], began[2]) == 2);
}

TEST_CASE("wait_for_everyone: nobody goes on before all have come") {
  std::atomic<int> come{0};
  const auto seen = results_of_ranks<int>(3, [&](const PartialState& state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * state.process_index()));
    ++come;
    state.wait_for_everyone();
    return come.load();
  });
  CHECK(seen == std::vector<int>{3, 3, 3});
}
