// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Connections of their own, and batches that become smaller until every rank's memory is enough.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <c10/util/Exception.h>
#include <catch2/catch_all.hpp>

#include <cmath>
#include <memory>
#include <new>

using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::run_ranks;
using Catch::Matchers::ContainsSubstring;
using Sizes = std::vector<int64_t>;

namespace {

const PartialState alone{accel::Communicator(), torch::kCPU};

c10::OutOfMemoryError out_of_memory() { return {c10::SourceLocation{"", "", 0}, "no memory"}; }

/// Says nothing.
const accel::BatchSizeSearch quiet{.log = [](const std::string&) {}};

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
        outer, starting_batch_size,
        [&](int64_t size, PartialState processes) {
          mine.tried.push_back(size);
          accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
              accelerator(processes);
          fail(processes.process_index(), size);
          return accelerator.gather(torch::tensor(size)).sum().template item<int64_t>() / 2;
        },
        quiet);
    mine.after = outer.communicator().all_sum(mine.size);
  });
  return seen;
}

}  // namespace

TEST_CASE(
    "B43 sizes are halved, a line for each that does not fit, down to an error at the floor") {
  Sizes tried;
  std::vector<std::string> lines;
  std::weak_ptr<int> held;
  bool released = true;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  const auto fits_up_to = [&](int64_t most) {
    tried.clear();
    lines.clear();
    return [&, most](int64_t size, const PartialState&) {
      released = released && held.expired();
      const auto memory = std::make_shared<int>();
      held = memory;
      tried.push_back(size);
      if (size > most) throw std::bad_alloc();
      return "fits " + std::to_string(size);
    };
  };
  CHECK(accel::find_executable_batch_size(alone, 128, fits_up_to(20), {.log = log}) == "fits 16");
  CHECK(tried == Sizes{128, 64, 32, 16});
  CHECK(lines == std::vector<std::string>{
                     "accel: batches of 128 ran out of memory on 1 of 1 ranks; trying 64",
                     "accel: batches of 64 ran out of memory on 1 of 1 ranks; trying 32",
                     "accel: batches of 32 ran out of memory on 1 of 1 ranks; trying 16"});
  CHECK_THROWS_WITH(
      accel::find_executable_batch_size(alone, 128, fits_up_to(0), {.smallest = 8, .log = log}),
      ContainsSubstring("no executable batch size found: 8, the smallest to try"));
  CHECK(tried == Sizes{128, 64, 32, 16, 8});
  CHECK_THROWS_WITH(
      accel::find_executable_batch_size(alone, 10, fits_up_to(0), {.smallest = 4, .log = log}),
      ContainsSubstring("found: 4"));
  CHECK(tried == Sizes{10, 5, 4});
  CHECK(released);
  // Accelerate's factor.
  CHECK(accel::find_executable_batch_size(alone, 128, fits_up_to(60),
                                          {.factor = 0.9, .log = log}) == "fits 58");
  CHECK(tried == Sizes{128, 115, 103, 92, 82, 73, 65, 58});
}

TEST_CASE("a search for a batch size that cannot end, or that ranks see differently, is refused") {
  const auto never = [](int64_t, const PartialState&) { return 0; };
  for (const double factor : {0.0, 1.0, -0.5, std::nan("")})
    CHECK_THROWS_WITH(accel::find_executable_batch_size(alone, 8, never, {.factor = factor}),
                      ContainsSubstring("needs a factor between 0 and 1"));
  CHECK_THROWS_WITH(accel::find_executable_batch_size(alone, 8, never, {.smallest = 9}),
                    ContainsSubstring("and got 0.5, 9 and 8"));
  const auto errors = errors_of_ranks(2, [&](const PartialState& outer) {
    (void)accel::find_executable_batch_size(outer, 8 + outer.process_index(), never);
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("rank 0 has 'starting_batch_size 8' where rank 1"));
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

TEST_CASE("B43 other exceptions pass through at once") {
  int calls = 0;
  CHECK_THROWS_WITH(accel::find_executable_batch_size(alone, 8,
                                                      [&](int64_t, const PartialState&) {
                                                        ++calls;
                                                        throw std::runtime_error("mine");
                                                      }),
                    "mine");
  CHECK(calls == 1);
}

TEST_CASE(
    "B43 a rank that runs out of memory frees the one that waits, and both go on with one size") {
  const auto seen = train_two(100, [](int rank, int64_t size) {
    if (rank == 1 && size > 30) throw std::bad_alloc();
  });
  for (const auto& rank : seen) {
    CHECK(rank.tried == Sizes{100, 50, 25});
    CHECK(rank.size == 25);
    CHECK(rank.after == 50);  // the connection outside is as good as ever
  }
}

TEST_CASE("ranks that run out of memory at different sizes agree on the smaller one") {
  const auto seen = train_two(64, [](int rank, int64_t size) {
    if (size > (rank == 0 ? 32 : 10)) throw out_of_memory();
  });
  for (const auto& rank : seen) CHECK(rank.tried == Sizes{64, 32, 16, 8});
}

TEST_CASE("memory that runs out inside a loader is memory, on every rank") {
  struct Large {
    int64_t batch_size;
    bool here;
    [[nodiscard]] std::size_t size() const { return 64; }
    [[nodiscard]] at::Tensor get(std::size_t) const {
      if (here && batch_size > 8) throw std::bad_alloc();
      return torch::ones({});
    }
  };
  const auto sizes_tried = [](auto data_of, accel::DataLoaderOptions loading) {
    std::vector<Sizes> tried(2);
    run_ranks(2, [&](const PartialState& outer) {
      accel::find_executable_batch_size(
          outer, 16,
          [&](int64_t size, PartialState processes) {
            const auto rank = processes.process_index();
            tried[static_cast<size_t>(rank)].push_back(size);
            accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
                accelerator(processes);
            auto options = loading;
            options.batch_size = size;
            auto loader =
                accelerator.prepare(accel::data_loader(data_of(Large{size, rank == 1}), options));
            for (auto& batch : loader) (void)accelerator.gather(batch);
          },
          quiet);
    });
    return tried;
  };
  const std::vector<Sizes> expected(2, Sizes{16, 8});
  const auto dataset = [](Large data) { return data; };
  CHECK(sizes_tried(dataset, {}) == expected);
  CHECK(sizes_tried(dataset, {.num_workers = 2}) == expected);
  CHECK(sizes_tried([](Large data) { return accel::as_stream(data); }, {}) == expected);
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
