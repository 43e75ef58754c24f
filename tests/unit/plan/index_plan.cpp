// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The worked examples of data sharding: each row is a dataset size, a batch size, a world, and what
// every rank must get.
#include <accel/data/index_plan.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace {

using accel::IndexPlan;
using accel::IndexPlanOptions;
using accel::SampleOrder;
using Texts = std::vector<std::string>;

/// The batches of one rank as "0 1 | 4 5".
std::string text_of(IndexPlanOptions options, int rank) {
  options.process_index = rank;
  const IndexPlan plan(options);
  std::string text;
  for (std::int64_t batch = 0; batch < plan.size(); ++batch) {
    if (batch > 0) text += " | ";
    const auto indices = plan.indices(batch, SampleOrder(options.samples));
    for (std::size_t i = 0; i < indices.size(); ++i)
      text += fmt::format("{}{}", i > 0 ? " " : "", indices[i]);
  }
  return text;
}

Texts texts_of(const IndexPlanOptions& options) {
  Texts texts;
  for (int rank = 0; rank < options.num_processes; ++rank) texts.push_back(text_of(options, rank));
  return texts;
}

std::vector<std::int64_t> sizes_of(IndexPlanOptions options) {
  std::vector<std::int64_t> sizes;
  for (options.process_index = 0; options.process_index < options.num_processes;
       ++options.process_index)
    sizes.push_back(IndexPlan(options).size());
  return sizes;
}

/// What gather_for_metrics collects over an epoch: round by round the ranks' slices, the last round
/// cut to the remainder.
std::vector<std::size_t> gathered(IndexPlanOptions options) {
  std::vector<std::size_t> all;
  const std::int64_t rounds = IndexPlan(options).size();
  for (std::int64_t round = 0; round < rounds; ++round) {
    const auto before = all.size();
    for (options.process_index = 0; options.process_index < options.num_processes;
         ++options.process_index) {
      const IndexPlan plan(options);
      if (round >= plan.size()) continue;
      const auto slice = plan.indices(round, SampleOrder(options.samples));
      all.insert(all.end(), slice.begin(), slice.end());
    }
    options.process_index = 0;
    const auto remainder = IndexPlan(options).remainder();
    if (round + 1 == rounds && remainder > 0)
      all.resize(before + static_cast<std::size_t>(remainder));
  }
  return all;
}

std::vector<std::size_t> first_numbers(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

constexpr IndexPlanOptions even(std::int64_t samples, std::int64_t batch, int ranks) {
  return {.samples = samples, .batch_size = batch, .num_processes = ranks};
}
constexpr IndexPlanOptions uneven(std::int64_t samples, std::int64_t batch, int ranks) {
  return {.samples = samples, .batch_size = batch, .num_processes = ranks, .even_batches = false};
}
constexpr IndexPlanOptions dropping(std::int64_t samples, std::int64_t batch, int ranks) {
  return {.samples = samples, .batch_size = batch, .num_processes = ranks, .drop_last = true};
}
constexpr IndexPlanOptions split(IndexPlanOptions options) {
  options.split_batches = true;
  return options;
}

}  // namespace

TEST_CASE("Worked examples: a batch a rank") {
  CHECK(texts_of(even(10, 2, 2)) == Texts{"0 1 | 4 5 | 8 9", "2 3 | 6 7 | 0 1"});
  CHECK(texts_of(uneven(10, 2, 2)) == Texts{"0 1 | 4 5 | 8 9", "2 3 | 6 7"});
  CHECK(texts_of(even(7, 2, 2)) == Texts{"0 1 | 4 5", "2 3 | 6 0"});
  CHECK(texts_of(uneven(7, 2, 2)) == Texts{"0 1 | 4 5", "2 3 | 6"});
  CHECK(texts_of(dropping(7, 2, 2)) == Texts{"0 1", "2 3"});
  CHECK(texts_of(even(9, 4, 2)) == Texts{"0 1 2 3 | 8 0 1 2", "4 5 6 7 | 3 4 5 6"});
  CHECK(texts_of(even(3, 4, 2)) == Texts{"0 1 2 0", "1 2 0 1"});
  CHECK(texts_of(even(2, 3, 4)) == Texts{"0 1 0", "1 0 1", "0 1 0", "1 0 1"});
  CHECK(texts_of(uneven(2, 3, 4)) == Texts{"0 1", "", "", ""});
  CHECK(texts_of(even(20, 3, 4)) ==
        Texts{"0 1 2 | 12 13 14", "3 4 5 | 15 16 17", "6 7 8 | 18 19 0", "9 10 11 | 1 2 3"});
  CHECK(texts_of(uneven(20, 3, 4)) ==
        Texts{"0 1 2 | 12 13 14", "3 4 5 | 15 16 17", "6 7 8 | 18 19", "9 10 11"});
  CHECK(texts_of(dropping(20, 3, 4)) == Texts{"0 1 2", "3 4 5", "6 7 8", "9 10 11"});
  CHECK(texts_of(even(21, 3, 3)) == Texts{"0 1 2 | 9 10 11 | 18 19 20", "3 4 5 | 12 13 14 | 0 1 2",
                                          "6 7 8 | 15 16 17 | 3 4 5"});
}

TEST_CASE("Worked examples: a batch is split") {
  CHECK(texts_of(split(even(11, 4, 2))) == Texts{"0 1 | 4 5 | 8 9", "2 3 | 6 7 | 10 0"});
  CHECK(texts_of(split(uneven(11, 4, 2))) == Texts{"0 1 | 4 5 | 8 9", "2 3 | 6 7 | 10"});
  CHECK(texts_of(split(even(9, 4, 2))) == Texts{"0 1 | 4 5 | 8 0", "2 3 | 6 7 | 1 2"});
  CHECK(texts_of(split(uneven(9, 4, 2))) == Texts{"0 1 | 4 5 | 8", "2 3 | 6 7"});
  CHECK(texts_of(split(dropping(11, 4, 2))) == Texts{"0 1 | 4 5", "2 3 | 6 7"});
  CHECK(texts_of(split(even(3, 8, 4))) == Texts{"0 1", "2 0", "1 2", "0 1"});
  CHECK(texts_of(split(even(1, 4, 2))) == Texts{"0 0", "0 0"});
}

TEST_CASE("Lengths are what iteration yields, where Accelerate promises one batch more") {
  CHECK(sizes_of(split(uneven(9, 4, 2))) ==
        std::vector<std::int64_t>{3, 2});  // Accelerate says 3 on rank 1
  CHECK(sizes_of(uneven(2, 3, 4)) == std::vector<std::int64_t>{1, 0, 0, 0});
  CHECK(sizes_of(uneven(20, 3, 4)) == std::vector<std::int64_t>{2, 2, 2, 1});
}

TEST_CASE("Batches that a sampler made are dealt out by number") {
  // [0 1 2] [3] [4 5] [6 7 8 9] [10] as batches 0..4: whole batches are given, and whole batches
  // repeated.
  CHECK(texts_of(even(5, 1, 2)) == Texts{"0 | 2 | 4", "1 | 3 | 0"});
  CHECK(texts_of(uneven(5, 1, 2)) == Texts{"0 | 2 | 4", "1 | 3"});
}

TEST_CASE("B11 metric gather: batches and remainders") {
  CHECK(texts_of(even(9, 2, 2)) == Texts{"0 1 | 4 5 | 8 0", "2 3 | 6 7 | 1 2"});
  CHECK(texts_of(even(8, 2, 2)) == Texts{"0 1 | 4 5", "2 3 | 6 7"});
  CHECK(texts_of(even(7, 2, 2)) == Texts{"0 1 | 4 5", "2 3 | 6 0"});
  CHECK(texts_of(uneven(9, 2, 2)) == Texts{"0 1 | 4 5 | 8", "2 3 | 6 7"});
  CHECK(texts_of(dropping(9, 2, 2)) == Texts{"0 1 | 4 5", "2 3 | 6 7"});
  CHECK(texts_of(dropping(7, 2, 2)) == Texts{"0 1", "2 3"});
  CHECK(texts_of(even(1, 2, 3)) == Texts{"0 0", "0 0", "0 0"});
  CHECK(texts_of(even(3, 2, 4)) == Texts{"0 1", "2 0", "1 2", "0 1"});
  CHECK(texts_of(even(2, 4, 3)) == Texts{"0 1 0 1", "0 1 0 1", "0 1 0 1"});
  CHECK(texts_of(even(5, 2, 3)) == Texts{"0 1", "2 3", "4 0"});

  for (const auto& row : {even(9, 2, 2), even(8, 2, 2), even(7, 2, 2), even(1, 2, 3), even(3, 2, 4),
                          even(2, 4, 3), even(5, 2, 3), uneven(9, 2, 2)})
    CHECK(gathered(row) == first_numbers(static_cast<std::size_t>(row.samples)));
  CHECK(gathered(dropping(9, 2, 2)) == first_numbers(8));
  CHECK(gathered(dropping(7, 2, 2)) == first_numbers(4));

  CHECK(IndexPlan(even(8, 2, 2)).remainder() ==
        0);  // a full round: nothing to cut, which is not "cut everything"
  CHECK(IndexPlan(even(9, 2, 2)).remainder() == 1);
}

TEST_CASE("The whole pipeline of two processes: what is gathered, and the remainder") {
  CHECK(gathered(even(10, 2, 2)) == first_numbers(10));
  CHECK(IndexPlan(even(10, 2, 2)).remainder() == 2);
  CHECK(gathered(even(7, 2, 2)) == first_numbers(7));
  CHECK(IndexPlan(even(7, 2, 2)).remainder() == 3);
  CHECK(gathered(even(9, 4, 2)) == first_numbers(9));
  CHECK(IndexPlan(even(9, 4, 2)).remainder() == 1);
  CHECK(gathered(split(uneven(11, 4, 2))) == first_numbers(11));
  CHECK(IndexPlan(split(uneven(11, 4, 2))).remainder() == 3);
  CHECK(gathered(dropping(11, 2, 2)) == first_numbers(8));
  CHECK(IndexPlan(dropping(11, 2, 2)).remainder() == -1);
}

TEST_CASE("One process gets a short last batch, and nothing twice") {
  CHECK(texts_of(even(5, 2, 1)) == Texts{"0 1 | 2 3 | 4"});
  CHECK(IndexPlan(even(5, 2, 1)).remainder() == 1);
  CHECK(gathered(even(5, 2, 1)) == first_numbers(5));
  CHECK(texts_of(split(even(5, 2, 1))) == Texts{"0 1 | 2 3 | 4"});
  CHECK(texts_of(dropping(5, 2, 1)) == Texts{"0 1 | 2 3"});
}

TEST_CASE("B13 dataset smaller than the world") {
  CHECK(texts_of(even(1, 1, 4)) == Texts{"0", "0", "0", "0"});
  for (const auto& empty :
       {even(0, 2, 3), uneven(0, 2, 3), dropping(0, 2, 3), split(even(0, 3, 3)), even(0, 2, 1)}) {
    CHECK(texts_of(empty) == Texts(static_cast<std::size_t>(empty.num_processes)));
    CHECK(gathered(empty).empty());
  }
  CHECK(texts_of(uneven(1, 1, 2)) == Texts{"0", ""});
  CHECK(texts_of(dropping(3, 2, 2)) == Texts{"", ""});
}

TEST_CASE("B15 split batches and length") {
  auto options = split(even(100, 10, 2));
  const IndexPlan plan(options);
  CHECK(plan.size() == 10);
  for (std::int64_t batch = 0; batch < plan.size(); ++batch)
    CHECK(plan.indices(batch, SampleOrder(100)).size() == 5);
  CHECK(texts_of(split(even(10, 4, 2))) == Texts{"0 1 | 4 5 | 8 9", "2 3 | 6 7 | 0 1"});
  CHECK(IndexPlan(split(even(10, 4, 2))).size() == 3);
  CHECK(IndexPlan(split(even(10, 4, 2))).total_batch_size() == 4);
  CHECK(IndexPlan(even(10, 4, 2)).total_batch_size() == 8);

  using Catch::Matchers::ContainsSubstring;
  using Catch::Matchers::MessageMatches;
  CHECK_THROWS_MATCHES(
      IndexPlan(split(even(100, 8, 3))), accel::Error,
      MessageMatches(ContainsSubstring("batch_size 8") && ContainsSubstring("num_processes 3")));
}

TEST_CASE("A permutation is followed, and wraps like any order") {
  const std::vector<std::int64_t> permutation{4, 2, 0, 1, 3};
  auto options = even(5, 2, 2);
  options.process_index = 1;
  const IndexPlan plan(options);
  REQUIRE(plan.size() == 2);
  CHECK(plan.indices(0, SampleOrder(permutation)) == std::vector<std::size_t>{0, 1});
  CHECK(plan.indices(1, SampleOrder(permutation)) == std::vector<std::size_t>{2, 0});
  CHECK_THROWS_AS(plan.indices(0, SampleOrder(6)), accel::Error);
  CHECK_THROWS_AS(plan.indices(2, SampleOrder(permutation)), accel::Error);
  CHECK_THROWS_AS(plan.indices(-1, SampleOrder(permutation)), accel::Error);
}

TEST_CASE("A plan for more samples than fit into memory is made at once") {
  auto options = even(std::int64_t{1} << 50, 1000, 8);
  options.process_index = 7;
  const IndexPlan plan(options);
  const auto last = plan.indices(plan.size() - 1, SampleOrder(options.samples));
  CHECK(plan.size() == (options.samples + 7999) / 8000);
  CHECK(last.size() == 1000);
}

TEST_CASE("Values that cannot be are refused by name") {
  using Catch::Matchers::ContainsSubstring;
  using Catch::Matchers::MessageMatches;
  const auto refused = [](const IndexPlanOptions& options, const std::string& name,
                          const std::string& value) {
    CHECK_THROWS_MATCHES(IndexPlan(options), accel::Error,
                         MessageMatches(ContainsSubstring(name) && ContainsSubstring(value)));
  };
  refused(even(10, 0, 2), "batch_size", "0");
  refused(even(10, -3, 2), "batch_size", "-3");
  refused(even(-1, 2, 2), "samples", "-1");
  refused(even(10, 2, 0), "num_processes", "0");
  refused(even(10, INT64_MAX, 2), "batch_size", std::to_string(INT64_MAX));
  refused({.samples = 4, .num_processes = 2, .process_index = 2}, "process_index", "2");
  refused({.samples = 4, .num_processes = 2, .process_index = -1}, "process_index", "-1");
}
