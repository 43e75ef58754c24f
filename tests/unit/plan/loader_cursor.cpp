// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The position of a loader: epochs, resuming, resuming on another number of ranks, damaged states.
#include <accel/data/loader_cursor.hpp>
#include <accel/data/index_plan.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

using accel::IndexPlan;
using accel::LoaderCursor;
using accel::LoaderState;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

LoaderCursor cursor(std::int64_t samples, std::int64_t batch_size, int ranks) {
  return {IndexPlan({.samples = samples, .batch_size = batch_size, .num_processes = ranks}), 42};
}

/// An epoch of `cursor`, left after `batches` of it.
void run(LoaderCursor& position, std::int64_t batches) {
  const auto start = position.start();
  for (auto batch = start.first_batch; batch < batches; ++batch) position.yielded(batch + 1);
  if (batches == position.plan().size()) position.finished(start.epoch);
}

}  // namespace

TEST_CASE("Epochs count up when they are finished, and only then") {
  auto position = cursor(10, 2, 1);
  run(position, 5);
  CHECK(position.epoch() == 1);
  run(position, 3);
  CHECK(position.epoch() == 1);
  CHECK(position.state().batches_yielded == 3);
  CHECK(position.start().first_batch == 0);
  position.finished(1);
  CHECK(position.epoch() == 2);
}

TEST_CASE("An epoch that the loop body chose is kept") {
  auto position = cursor(10, 2, 1);
  position.start();
  position.set_epoch(7);
  position.finished(0);
  CHECK(position.epoch() == 7);
  CHECK_THROWS_AS(position.set_epoch(-1), accel::Error);
  CHECK_THROWS_AS(position.set_epoch(std::numeric_limits<std::int64_t>::max()), accel::Error);
}

TEST_CASE("A loaded position is where the next iteration starts, once") {
  auto saved = cursor(10, 2, 1);
  run(saved, 5);
  run(saved, 2);
  auto loaded = cursor(10, 2, 1);
  loaded.load_state(saved.state());
  CHECK(loaded.state() == saved.state());

  SECTION("at once") {}
  SECTION("with a loop that names its epoch") { loaded.set_epoch(1); }
  const auto start = loaded.start();
  CHECK(start.epoch == 1);
  CHECK(start.first_batch == 2);
  CHECK(start.resumed);
  loaded.finished(1);
  const auto next = loaded.start();
  CHECK(next.epoch == 2);
  CHECK(next.first_batch == 0);
  CHECK_FALSE(next.resumed);
}

TEST_CASE("Another epoch forgets the loaded position") {
  auto loaded = cursor(10, 2, 1);
  loaded.load_state(
      {.epoch = 1, .batches_yielded = 2, .seed = 5, .samples = 10, .total_batch_size = 2});
  CHECK(loaded.seed() == 5);
  loaded.set_epoch(3);
  CHECK(loaded.start().first_batch == 0);
}

TEST_CASE("A position behind the last batch resumes to an empty rest of the epoch") {
  auto loaded = cursor(10, 2, 1);
  loaded.load_state(
      {.epoch = 4, .batches_yielded = 5, .seed = 5, .samples = 10, .total_batch_size = 2});
  CHECK(loaded.start().first_batch == 5);
  loaded.finished(4);
  CHECK(loaded.epoch() == 5);
}

TEST_CASE("A position between epochs does not ask for the same data") {
  auto loaded = cursor(10, 2, 1);
  loaded.load_state(
      {.epoch = 4, .batches_yielded = 0, .seed = 5, .samples = 999, .total_batch_size = 64});
  const auto start = loaded.start();
  CHECK(start.epoch == 4);
  CHECK_FALSE(start.resumed);
}

TEST_CASE("A position is resumed on another number of ranks where it is a whole number of steps") {
  auto saved = cursor(24, 2, 2);
  run(saved, 3);  // 12 samples
  auto wider = cursor(24, 2, 3);
  wider.load_state(saved.state());
  CHECK(wider.start().first_batch == 2);
  auto narrower = cursor(24, 2, 1);
  narrower.load_state(saved.state());
  CHECK(narrower.start().first_batch == 6);

  auto unfit = cursor(24, 5, 1);
  CHECK_THROWS_MATCHES(
      unfit.load_state(saved.state()), accel::Error,
      MessageMatches(ContainsSubstring("12 samples") && ContainsSubstring("5 samples")));
  CHECK(unfit.start().first_batch == 0);  // the refused state left nothing behind

  // The last round of the saved epoch was filled up: the epoch is over, whatever the step takes
  // now.
  auto over = cursor(7, 2, 2);
  run(over, 1);
  auto state = over.state();
  state.batches_yielded = 2;
  auto other = cursor(7, 3, 1);
  other.load_state(state);
  CHECK(other.start().first_batch == other.plan().size());
}

TEST_CASE("A position in another dataset, or a damaged one, is refused by name") {
  auto position = cursor(10, 2, 1);
  const LoaderState good{
      .epoch = 1, .batches_yielded = 2, .seed = 5, .samples = 10, .total_batch_size = 2};
  auto other_data = good;
  other_data.samples = 12;
  CHECK_THROWS_MATCHES(
      position.load_state(other_data), accel::Error,
      MessageMatches(ContainsSubstring("12 samples") && ContainsSubstring("10 now")));
  for (auto damage :
       {&LoaderState::epoch, &LoaderState::batches_yielded, &LoaderState::total_batch_size}) {
    auto bad = good;
    bad.*damage = -1;
    CHECK_THROWS_AS(position.load_state(bad), accel::Error);
  }
  auto far = good;
  far.batches_yielded = INT64_MAX;
  CHECK_THROWS_AS(position.load_state(far), accel::Error);
}

TEST_CASE("Skipping leaves out batches of one epoch") {
  auto position = cursor(10, 2, 1);
  CHECK(position.start(2).first_batch == 2);
  CHECK(position.start().first_batch == 0);
  CHECK(position.start(99).first_batch == 5);
  CHECK_THROWS_AS(position.start(-1), accel::Error);
}

TEST_CASE("A dataset that has grown is seen whole") {
  auto position = cursor(10, 2, 1);
  position.resize(20);
  CHECK(position.plan().size() == 10);
  CHECK(position.state().samples == 20);
}
