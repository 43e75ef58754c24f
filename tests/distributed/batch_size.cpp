// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Connections of their own, and batches that become smaller until every rank's memory is enough.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <c10/util/Exception.h>
#include <catch2/catch_all.hpp>

#include <new>

using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::run_ranks;
using Catch::Matchers::ContainsSubstring;
using Sizes = std::vector<int64_t>;

namespace {

const PartialState alone{accel::Communicator(), torch::kCPU};

c10::OutOfMemoryError out_of_memory() { return {c10::SourceLocation{"", "", 0}, "no memory"}; }

/// What a rank saw: the sizes that were tried, and the one that it ended with.
struct Seen {
  Sizes tried;
  int64_t size = 0;
  int64_t after = 0;
};

/// Two ranks whose training fails with `fail(rank, size)`, called before a gather.
template <class Fail>
std::vector<Seen> train_two(int64_t starting_batch_size, Fail&& fail) {
  std::vector<Seen> seen(2);
  run_ranks(2, [&](const PartialState& outer) {
    auto& mine = seen[static_cast<size_t>(outer.process_index())];
    mine.size = accel::find_executable_batch_size(
        outer, starting_batch_size, [&](int64_t size, PartialState processes) {
          mine.tried.push_back(size);
          accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
              accelerator(processes);
          fail(processes.process_index(), size);
          return accelerator.gather(torch::tensor(size)).sum().template item<int64_t>() / 2;
        });
    mine.after = outer.communicator().all_sum(mine.size);
  });
  return seen;
}

}  // namespace

TEST_CASE("sizes follow Accelerate's rule, down to an error at zero") {
  Sizes tried;
  const auto found =
      accel::find_executable_batch_size(alone, 128, [&](int64_t size, const PartialState&) {
        tried.push_back(size);
        if (size > 60) throw std::bad_alloc();
        return "fits " + std::to_string(size);
      });
  CHECK(found == "fits 58");
  CHECK(tried == Sizes{128, 115, 103, 92, 82, 73, 65, 58});
  tried.clear();
  CHECK_THROWS_WITH(accel::find_executable_batch_size(alone, 3,
                                                      [&](int64_t size, const PartialState&) {
                                                        tried.push_back(size);
                                                        throw std::bad_alloc();
                                                      }),
                    ContainsSubstring("no executable batch size found from 3 down"));
  CHECK(tried == Sizes{3, 2, 1});
}

TEST_CASE("what says that memory ran out, and what does not") {
  CHECK(accel::is_out_of_memory(std::bad_alloc()));
  CHECK(accel::is_out_of_memory(out_of_memory()));
  CHECK(accel::is_out_of_memory(std::runtime_error("CUDA out of memory. Tried to allocate")));
  CHECK_FALSE(accel::is_out_of_memory(std::runtime_error("a matrix")));
  CHECK_FALSE(accel::is_out_of_memory(
      accel::Error(accel::ErrorCategory::collective, "rank 1: CUDA out of memory. Tried")));
  try {
    (void)torch::empty({int64_t{1} << 50}, torch::kByte);
    FAIL("1 PiB was allocated");
  } catch (const std::exception& error) {
    CHECK(accel::is_out_of_memory(error));
  }
}

TEST_CASE("other exceptions pass through at once") {
  int calls = 0;
  CHECK_THROWS_WITH(accel::find_executable_batch_size(alone, 8,
                                                      [&](int64_t, const PartialState&) {
                                                        ++calls;
                                                        throw std::runtime_error("mine");
                                                      }),
                    "mine");
  CHECK(calls == 1);
}

TEST_CASE("a rank that runs out of memory frees the one that waits, and both go on with one size") {
  const auto seen = train_two(100, [](int rank, int64_t size) {
    if (rank == 1 && size > 80) throw std::bad_alloc();
  });
  for (const auto& rank : seen) {
    CHECK(rank.tried == Sizes{100, 90, 81, 72});
    CHECK(rank.size == 72);
    CHECK(rank.after == 144);  // the connection outside is as good as ever
  }
}

TEST_CASE("ranks that run out of memory at different sizes agree on the smaller one") {
  const auto seen = train_two(10, [](int rank, int64_t size) {
    if (size > (rank == 0 ? 8 : 6)) throw out_of_memory();
  });
  for (const auto& rank : seen) CHECK(rank.tried == Sizes{10, 9, 8, 7, 6});
}

TEST_CASE("another failure on one rank ends all of them, with the reason where it was") {
  const auto errors = errors_of_ranks(2, [](const PartialState& outer) {
    accel::find_executable_batch_size(outer, 8, [](int64_t, const PartialState& processes) {
      if (processes.process_index() == 1) throw std::runtime_error("not memory");
      processes.wait_for_everyone();
    });
  });
  CHECK_THAT(errors[0], ContainsSubstring("barrier failed"));
  CHECK(errors[1] == "not memory");
  const auto done = errors_of_ranks(2, [](const PartialState& outer) {
    accel::find_executable_batch_size(outer, 8, [](int64_t, const PartialState& processes) {
      if (processes.process_index() == 1) throw std::runtime_error("not memory");
    });
  });
  CHECK_THAT(done[0], ContainsSubstring("ended well here and failed on another rank"));
}

TEST_CASE("a duplicate is a connection of its own") {
  run_ranks(2, [](const PartialState& state) {
    const auto& outer = state.communicator();
    {
      const auto first = outer.duplicate(), second = outer.duplicate();
      if (first.group() == outer.group() || first.group() == second.group())
        throw std::runtime_error("one group");
      // At once, which one connection could not do.
      std::jthread other([&] { (void)second.all_sum(1); });
      if (first.all_sum(state.process_index()) != 1) throw std::runtime_error("sum");
      if (first.duplicate().all_sum(1) != 2) throw std::runtime_error("duplicate of a duplicate");
    }
    if (outer.all_sum(1) != 2) throw std::runtime_error("outer");
  });
  CHECK(accel::Communicator().duplicate().size() == 1);
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    const auto& outer = state.communicator();
    (void)accel::Communicator::over_group(outer.group(), outer.ranks()).duplicate();
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("cannot be duplicated"));
}
