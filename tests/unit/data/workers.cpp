// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Loaders that read ahead with threads: the same batches, errors that arrive, early ends, and what
// threads may share.
#include <accel/data/active_loaders.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/data/prepared_loader.hpp>
#include <accel/detail/error.hpp>

#include <ATen/Parallel.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using accel::ActiveLoaders;
using accel::data_loader;
using accel::DataLoaderOptions;
using accel::LoaderPlacement;
using accel::PreparedDataLoader;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using namespace std::chrono_literals;

/// Reads slowly, unevenly, and fails at one sample if asked to.
struct SlowSet {
  std::int64_t count = 0;
  std::chrono::microseconds pause{0};
  std::int64_t fails_at = -1;

  std::size_t size() const { return static_cast<std::size_t>(count); }
  std::int64_t get(std::size_t index) const {
    const auto number = static_cast<std::int64_t>(index);
    std::this_thread::sleep_for(pause * (1 + number % 3));
    if (number == fails_at) throw std::runtime_error("disk on fire");
    return number;
  }
};

template <class Range>
std::vector<std::int64_t> samples_of(const Range& loader) {
  std::vector<std::int64_t> samples;
  for (const at::Tensor& batch : loader) {
    const auto* data = batch.const_data_ptr<std::int64_t>();
    samples.insert(samples.end(), data, data + batch.numel());
  }
  return samples;
}

/// Counts what is alive of it: copies that threads made.
struct CountedSet {
  std::shared_ptr<std::atomic<int>> copies = std::make_shared<std::atomic<int>>(0);
  std::int64_t reads = 0;
  std::size_t size() const { return 12; }
  std::int64_t get(std::size_t index) {
    ++reads;  // a data race, if threads shared it
    return static_cast<std::int64_t>(index);
  }
  CountedSet() = default;
  CountedSet(const CountedSet& other) : copies(other.copies), reads(other.reads) { ++*copies; }
  CountedSet(CountedSet&&) = default;
};

struct FixedSet {
  std::size_t size() const { return 4; }
  std::int64_t get(std::size_t index) { return static_cast<std::int64_t>(index); }
  FixedSet() = default;
  FixedSet(FixedSet&&) = default;
};

}  // namespace

TEST_CASE("Threads give the batches of no threads, epoch after epoch") {
  for (const bool shuffle : {false, true}) {
    const DataLoaderOptions base{.batch_size = 3, .shuffle = shuffle, .data_seed = 5};
    for (const int workers : {1, 2, 5}) {
      for (const int factor : {1, 2}) {
        auto options = base;
        options.num_workers = workers;
        options.prefetch_factor = factor;
        const auto plain = data_loader(SlowSet{.count = 50}, base);
        const auto threaded = data_loader(SlowSet{.count = 50, .pause = 20us}, options);
        for (int epoch = 0; epoch < 3; ++epoch) REQUIRE(samples_of(threaded) == samples_of(plain));
      }
    }
  }
}

TEST_CASE("Threads draw nothing from the program's generator") {
  const auto after = [](int workers) {
    torch::manual_seed(4);
    samples_of(data_loader(SlowSet{.count = 20},
                           {.batch_size = 3, .shuffle = true, .num_workers = workers}));
    return torch::rand(1).item<float>();
  };
  CHECK(after(2) == after(0));
}

TEST_CASE("A failure arrives in its place, names the samples, and ends the epoch cleanly") {
  for (const int workers : {0, 1, 3}) {
    const auto active = std::make_shared<ActiveLoaders>();
    const PreparedDataLoader loader(data_loader(SlowSet{.count = 40, .pause = 10us, .fails_at = 9},
                                                {.batch_size = 4, .num_workers = workers}),
                                    LoaderPlacement{.active_loaders = active});
    int batches = 0;
    try {
      for (const auto& batch : loader) {
        CHECK(batch[0].item<std::int64_t>() == 4 * batches);
        ++batches;
      }
      FAIL("the failure was lost");
    } catch (const accel::Error& error) {
      CHECK(error.category() == accel::ErrorCategory::data);
      CHECK_THAT(error.what(),
                 ContainsSubstring("samples [8, 9, 10, 11]") && ContainsSubstring("disk on fire"));
      CHECK_THROWS_MATCHES(std::rethrow_if_nested(error), std::runtime_error,
                           Catch::Matchers::Message("disk on fire"));
    }
    CHECK(batches == 2);
    CHECK_FALSE(active->in_dataloader());
    CHECK(loader.state().batches_yielded == 2);  // what a checkpoint made now would keep
    loader.dataset().fails_at = -1;
    CHECK(samples_of(loader).size() == 40);
    CHECK(loader.epoch() == 1);
  }
}

TEST_CASE("Anything thrown is told apart, and LibTorch's errors without their backtrace") {
  const auto failing = [](auto thrower) {
    return data_loader(std::vector<int>{1, 2}, {.num_workers = 1},
                       [thrower](std::vector<int>) -> at::Tensor { return thrower(); });
  };
  const auto said = [](const auto& loader, const std::string& text) {
    CHECK_THROWS_MATCHES(
        [&] {
          for (const auto& batch : loader) (void)batch;
        }(),
        accel::Error, MessageMatches(ContainsSubstring("samples [0]") && ContainsSubstring(text)));
  };
  said(failing([]() -> at::Tensor { throw 42; }), "no std::exception");
  said(failing([]() -> at::Tensor { return torch::ones(2).view({3}); }), "shape '[3]' is invalid");
  try {
    for (const auto& batch : failing([]() -> at::Tensor { return torch::ones(2).view({3}); }))
      (void)batch;
  } catch (const accel::Error& error) {
    CHECK_THAT(error.what(), !ContainsSubstring("frame #"));
  }
}

TEST_CASE("A loop that is left early does not wait for the rest") {
  const auto begin = std::chrono::steady_clock::now();
  const auto loader = data_loader(SlowSet{.count = 1'000, .pause = 10ms},
                                  {.num_workers = 4, .prefetch_factor = 50});
  for (const auto& batch : loader) {
    (void)batch;
    break;
  }
  CHECK(std::chrono::steady_clock::now() - begin <
        3s);  // all that may be read ahead would take 1 s a thread
}

TEST_CASE("No more is read ahead than asked for") {
  std::atomic<int> reads = 0;
  const auto counting = [&reads](std::vector<std::int64_t> samples) {
    ++reads;
    return samples;
  };
  const auto loader =
      data_loader(SlowSet{.count = 100}, {.num_workers = 2, .prefetch_factor = 3}, counting);
  auto it = loader.begin();
  for (int i = 0; i < 400 && reads < 7; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(30ms);
  CHECK(reads == 7);  // the one handed out, and 2 x 3
}

TEST_CASE("A dataset that reading may change is copied for each thread, any other is shared") {
  const auto loader =
      data_loader(std::make_shared<CountedSet>(), {.batch_size = 2, .num_workers = 3});
  CHECK(samples_of(loader).size() == 12);
  CHECK(*loader.dataset().copies == 3);
  CHECK(loader.dataset().reads == 0);
  samples_of(loader);
  CHECK(*loader.dataset().copies == 6);

  CHECK(samples_of(data_loader(FixedSet(), {.batch_size = 2})).size() == 4);
  CHECK_THROWS_MATCHES(
      data_loader(FixedSet(), {.num_workers = 1}), accel::Error,
      MessageMatches(ContainsSubstring("num_workers is 1") && ContainsSubstring("const")));
}

TEST_CASE("A loader's threads use one thread each, and nobody else's number changes") {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  std::mutex mutex;
  std::vector<int> counts;
  const auto counting = [&](std::vector<std::int64_t> samples) {
    const std::lock_guard lock(mutex);
    counts.push_back(at::get_num_threads());
    return samples;
  };
  const auto loader = data_loader(SlowSet{.count = 8}, {.num_workers = 2}, counting);
  for (const auto& batch : loader) {
    (void)batch;
    CHECK(at::get_num_threads() == 2);
  }
  CHECK(counts == std::vector<int>(8, 1));
  int later = 0;
  std::thread([&] { later = at::get_num_threads(); }).join();
  CHECK(later == 2);
  at::set_num_threads(before);
}

TEST_CASE("Two loops over one loader, one in the other, have threads of their own") {
  const auto loader =
      data_loader(SlowSet{.count = 6, .pause = 50us}, {.batch_size = 2, .num_workers = 2});
  std::vector<std::vector<std::int64_t>> inner;
  int outer = 0;
  for (const auto& batch : loader) {
    CHECK(batch[0].item<std::int64_t>() == 2 * outer++);
    inner.push_back(samples_of(loader));
  }
  CHECK(outer == 3);
  for (const auto& samples : inner) CHECK(samples == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
}
