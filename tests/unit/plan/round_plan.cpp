// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The rounds of streams as arithmetic.
#include <accel/data/round_plan.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdint>
#include <vector>

using accel::RoundPlan;
using accel::RoundPlanOptions;
using accel::RoundShare;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Shares = std::vector<RoundShare>;

TEST_CASE("Ranks that all read the stream take neighbouring slices, and fill up the last one") {
  const RoundPlan plan({.batch_size = 2, .num_processes = 2});
  CHECK(plan.read_size() == 4);
  CHECK(plan.shares({4}) == Shares{{0, 2, 2}, {2, 2, 2}});
  CHECK(plan.shares({3}) == Shares{{0, 2, 2}, {2, 2, 1}});
  CHECK(plan.shares({1}) == Shares{{0, 2, 1}, {2, 2, 0}});
  CHECK(plan.exists({1}));
  CHECK_FALSE(plan.exists({0}));
}

TEST_CASE("Without even_batches a rank has what is left for it") {
  const RoundPlan plan({.batch_size = 2, .num_processes = 2, .even_batches = false});
  CHECK(plan.shares({3}) == Shares{{0, 2, 2}, {2, 1, 1}});
  CHECK(plan.shares({1}) == Shares{{0, 1, 1}, {2, 0, 0}});
  CHECK(plan.batches(5, 0) == 2);
  CHECK(plan.batches(5, 1) == 1);
}

TEST_CASE("A round that is dealt out is cut as evenly as can be") {
  const RoundPlan even({.batch_size = 2, .num_processes = 4, .dispatch = true});
  CHECK(even.shares({3}) == Shares{{0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 1, 0}});
  CHECK(even.shares({1}) ==
        Shares{{0, 1, 1}, {1, 1, 0}, {2, 1, 0}, {3, 1, 0}});  // T18 has empty ones
  CHECK(even.shares({5}) == Shares{{0, 2, 2}, {2, 2, 2}, {4, 2, 1}, {6, 2, 0}});
  const RoundPlan uneven(
      {.batch_size = 2, .num_processes = 4, .even_batches = false, .dispatch = true});
  CHECK(uneven.shares({5}) == Shares{{0, 2, 2}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}});
}

TEST_CASE("A rank whose own stream has ended goes on with repeats as long as others have samples") {
  const RoundPlan plan({.batch_size = 2, .num_processes = 2, .already_sharded = true});
  CHECK(plan.read_size() == 2);
  CHECK(plan.total_batch_size() == 4);
  CHECK(plan.shares({1, 0}) == Shares{{0, 2, 1}, {0, 2, 0}});
  CHECK(plan.exists({0, 1}));
  CHECK_FALSE(plan.exists({0, 0}));
  const RoundPlan drop(
      {.batch_size = 2, .num_processes = 2, .drop_last = true, .already_sharded = true});
  CHECK(drop.exists({2, 2}));
  CHECK_FALSE(drop.exists({2, 1}));
}

TEST_CASE("One process never repeats, and drop_last leaves the last round out") {
  const RoundPlan one({.batch_size = 4});
  CHECK(one.shares({3}) == Shares{{0, 3, 3}});
  CHECK(one.batches(7, 0) == 2);
  const RoundPlan drop({.batch_size = 2, .num_processes = 2, .drop_last = true});
  CHECK_FALSE(drop.exists({3}));
  CHECK(drop.batches(7, 0) == 1);
  // T20: a batch of all ranks that no slice can be cut from is an error, not an empty epoch.
  CHECK_THROWS_MATCHES(
      RoundPlan({.batch_size = 1, .num_processes = 2, .split_batches = true}), accel::Error,
      MessageMatches(ContainsSubstring("batch_size 1 is not a multiple of num_processes 2")));
  CHECK_THROWS_MATCHES(RoundPlan({.batch_size = 1, .dispatch = true, .already_sharded = true}),
                       accel::Error, MessageMatches(ContainsSubstring("use one of them")));
}
