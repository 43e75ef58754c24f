// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads that read ahead: order, bounds, failures, and being destroyed early.
#include <accel/data/prefetcher.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

using accel::detail::Prefetcher;
using namespace std::chrono_literals;

void sleep_a_little(std::int64_t number) {
  std::minstd_rand random(static_cast<unsigned>(number + 1));
  random.discard(3);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
}

}  // namespace

TEST_CASE("Results come in order, whatever the number of threads and their speed") {
  for (const int workers : {1, 2, 3, 8}) {
    for (const int capacity : {1, 2, 5, 16}) {
      Prefetcher<std::int64_t> prefetcher(
          {.first = 3, .last = 60, .workers = workers, .capacity = capacity},
          [](int, std::int64_t number) {
            sleep_a_little(number);
            return number * number;
          },
          [] {});
      for (std::int64_t number = 3; number < 60; ++number)
        REQUIRE(prefetcher.next() == number * number);
      CHECK_THROWS_AS(prefetcher.next(), accel::Error);
    }
  }
}

TEST_CASE("No more is read ahead than there is room for") {
  std::atomic<int> made = 0;
  Prefetcher<int> prefetcher(
      {.first = 0, .last = 100, .workers = 3, .capacity = 4},
      [&](int, std::int64_t number) {
        ++made;
        return static_cast<int>(number);
      },
      [] {});
  for (int i = 0; i < 200 && made < 4; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(30ms);  // time to make a fifth, if it would
  CHECK(made == 4);
  for (int taken = 0; taken < 10; ++taken) CHECK(prefetcher.next() == taken);
  for (int i = 0; i < 200 && made < 14; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(30ms);
  CHECK(made == 14);
}

TEST_CASE("Results that only move are fine, and each thread has started in its own way") {
  std::mutex mutex;
  std::set<std::thread::id> started;
  Prefetcher<std::unique_ptr<int>> prefetcher(
      {.first = 0, .last = 8, .workers = 4, .capacity = 8},
      [](int, std::int64_t number) { return std::make_unique<int>(static_cast<int>(number)); },
      [&] {
        const std::lock_guard lock(mutex);
        started.insert(std::this_thread::get_id());
      });
  CHECK(started.size() == 4);  // when the constructor returns, all have
  for (int number = 0; number < 8; ++number) CHECK(*prefetcher.next() == number);
}

TEST_CASE("A failure is seen at its place in the order, and nothing is made behind it") {
  std::atomic<std::int64_t> furthest = 0;
  Prefetcher<int> prefetcher(
      {.first = 0, .last = 1'000'000, .workers = 2, .capacity = 4},
      [&](int, std::int64_t number) {
        if (number == 6) throw std::runtime_error("number 6");
        for (auto seen = furthest.load(); number > seen;)
          if (furthest.compare_exchange_weak(seen, number)) break;
        return static_cast<int>(number);
      },
      [] {});
  for (int number = 0; number < 6; ++number) REQUIRE(prefetcher.next() == number);
  CHECK_THROWS_MATCHES(prefetcher.next(), std::runtime_error, Catch::Matchers::Message("number 6"));
  CHECK_THROWS_AS(prefetcher.next(), accel::Error);  // and not a wait for ever
  CHECK(furthest < 11);
}

TEST_CASE("Of several failures, the first in the order is the one") {
  for (int round = 0; round < 50; ++round) {
    Prefetcher<int> prefetcher(
        {.first = 0, .last = 100, .workers = 4, .capacity = 8},
        [&](int, std::int64_t number) -> int {
          sleep_a_little(number + 100 * round);
          if (number >= 2) throw std::runtime_error(std::to_string(number));
          return static_cast<int>(number);
        },
        [] {});
    REQUIRE(prefetcher.next() == 0);
    REQUIRE(prefetcher.next() == 1);
    REQUIRE_THROWS_MATCHES(prefetcher.next(), std::runtime_error, Catch::Matchers::Message("2"));
  }
}

TEST_CASE("Destroyed early, it waits for what is being made and no longer") {
  const auto begin = std::chrono::steady_clock::now();
  {
    Prefetcher<int> prefetcher(
        {.first = 0, .last = 1'000, .workers = 4, .capacity = 1'000},
        [](int, std::int64_t number) {
          std::this_thread::sleep_for(20ms);
          return static_cast<int>(number);
        },
        [] {});
    CHECK(prefetcher.next() == 0);
  }
  CHECK(std::chrono::steady_clock::now() - begin < 2s);  // all of it would take 5 s
}
