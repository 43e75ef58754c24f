// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Data sharding on 20,000 random settings, against what must hold of any, and against a model of
// Accelerate's sampler that does what that one does: it walks through the base batches, holds back
// what is not complete, and fills up at the end.
#include <accel/data/index_plan.hpp>

#include <catch2/catch_test_macros.hpp>

#include <range/v3/algorithm/all_of.hpp>
#include <range/v3/range/conversion.hpp>
#include <range/v3/view/chunk.hpp>
#include <range/v3/view/cycle.hpp>
#include <range/v3/view/drop.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/take.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace {

using accel::IndexPlan;
using accel::IndexPlanOptions;
using accel::SampleOrder;
using Batch = std::vector<std::size_t>;
using Batches = std::vector<Batch>;
namespace views = ranges::views;

/// The batches that a sampler without ranks makes.
Batches base_batches(const IndexPlanOptions& o) {
  auto batches = views::ints(std::size_t{0}, static_cast<std::size_t>(o.samples)) |
                 views::chunk(o.batch_size) | ranges::to<Batches>();
  if (o.drop_last && !batches.empty() &&
      batches.back().size() < static_cast<std::size_t>(o.batch_size))
    batches.pop_back();
  return batches;
}

Batch cycled(const Batch& pool, std::size_t from, std::size_t count) {
  return pool | views::cycle | views::drop(from) | views::take(count) | ranges::to<Batch>();
}

/// Accelerate, a batch a rank: rounds are released when their last batch is there and full.
Batches model_of_whole_batches(const IndexPlanOptions& o) {
  const auto base = base_batches(o);
  const auto world = static_cast<std::size_t>(o.num_processes);
  const auto mine = static_cast<std::size_t>(o.process_index);
  const auto full = static_cast<std::size_t>(o.batch_size);
  Batches result;
  Batch pool;  // what the last round is filled from: the first round's samples
  for (std::size_t i = 0; i < std::min(world, base.size()); ++i)
    pool.insert(pool.end(), base[i].begin(), base[i].end());

  std::size_t next = 0;
  while (base.size() - next >= world && base[next + world - 1].size() == full) {
    result.push_back(base[next + mine]);
    next += world;
  }
  if (next == base.size() || o.drop_last) return result;
  if (!o.even_batches) {
    if (next + mine < base.size()) result.push_back(base[next + mine]);
    return result;
  }
  std::size_t taken = 0;
  for (std::size_t rank = 0; rank < world; ++rank) {
    Batch batch = next + rank < base.size() ? base[next + rank] : Batch{};
    const auto fill = cycled(pool, taken, full - batch.size());
    taken += fill.size();
    batch.insert(batch.end(), fill.begin(), fill.end());
    if (rank == mine) result.push_back(batch);
  }
  return result;
}

/// Accelerate, batches split: every rank takes its part of every batch.
Batches model_of_split_batches(const IndexPlanOptions& o) {
  const auto base = base_batches(o);
  const auto full = static_cast<std::size_t>(o.batch_size);
  const auto part = full / static_cast<std::size_t>(o.num_processes);
  const auto begin = part * static_cast<std::size_t>(o.process_index);
  Batches result;
  for (auto batch : base) {
    if (batch.size() < full && o.even_batches) {
      const auto fill = cycled(base.front(), 0, full - batch.size());
      batch.insert(batch.end(), fill.begin(), fill.end());
    }
    if (begin < batch.size())
      result.push_back(batch | views::drop(begin) | views::take(part) | ranges::to<Batch>());
  }
  return result;
}

Batches model(const IndexPlanOptions& o) {
  if (o.num_processes == 1) return base_batches(o);
  return o.split_batches ? model_of_split_batches(o) : model_of_whole_batches(o);
}

Batches batches_of(const IndexPlan& plan, const SampleOrder& order) {
  Batches batches;
  for (std::int64_t batch = 0; batch < plan.size(); ++batch)
    batches.push_back(plan.indices(batch, order));
  return batches;
}

struct Draw {
  IndexPlanOptions options;
  std::vector<std::int64_t> permutation;
};

Draw draw(std::mt19937& random) {
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  Draw drawn;
  auto& o = drawn.options;
  o.num_processes = between(1, 9);
  o.samples = between(0, 3) == 0 ? between(0, 6) : between(0, 150);
  o.batch_size = between(1, 12);
  o.split_batches = between(0, 1) == 1;
  if (o.split_batches) o.batch_size *= o.num_processes;
  o.drop_last = between(0, 2) == 0;
  o.even_batches = between(0, 1) == 1;
  drawn.permutation.resize(static_cast<std::size_t>(o.samples));
  std::iota(drawn.permutation.begin(), drawn.permutation.end(), 0);
  std::shuffle(drawn.permutation.begin(), drawn.permutation.end(), random);
  return drawn;
}

std::vector<Batches> batches_of_all_ranks(IndexPlanOptions options, const SampleOrder& order) {
  std::vector<Batches> ranks;
  for (options.process_index = 0; options.process_index < options.num_processes;
       ++options.process_index)
    ranks.push_back(batches_of(IndexPlan(options), order));
  return ranks;
}

}  // namespace

TEST_CASE("20,000 random settings agree with Accelerate's sampler") {
  std::mt19937 random(20240611);
  for (int i = 0; i < 20'000; ++i) {
    auto [options, unused] = draw(random);
    options.process_index = std::uniform_int_distribution(0, options.num_processes - 1)(random);
    const auto mine = batches_of(IndexPlan(options), SampleOrder(options.samples));
    if (mine != model(options)) {
      CAPTURE(options.samples, options.batch_size, options.num_processes, options.process_index,
              options.drop_last, options.even_batches, options.split_batches);
      REQUIRE(mine == model(options));
    }
  }
}

TEST_CASE("20,000 random settings keep the promises of a plan") {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const auto [options, permutation] = draw(random);
    const SampleOrder order{std::span(permutation)};
    const auto ranks = batches_of_all_ranks(options, order);
    const IndexPlan plan(options);
    const bool even = options.even_batches && options.num_processes > 1;
    CAPTURE(i, options.samples, options.batch_size, options.num_processes, options.drop_last,
            options.even_batches, options.split_batches);

    // Rounds, gathered in rank order.
    Batch seen;
    std::size_t rounds = 0;
    for (const auto& batches : ranks) rounds = std::max(rounds, batches.size());
    std::size_t last_round = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
      last_round = seen.size();
      for (const auto& batches : ranks)
        if (round < batches.size())
          seen.insert(seen.end(), batches[round].begin(), batches[round].end());
    }
    const auto samples = static_cast<std::size_t>(options.samples);
    const auto round_size = static_cast<std::size_t>(plan.total_batch_size());

    // Equal work on all ranks, where it is promised.
    bool equal = true;
    for (const auto& batches : ranks) equal = equal && batches.size() == ranks.front().size();
    if (even || options.drop_last) REQUIRE(equal);
    bool full = true;
    for (const auto& batches : ranks)
      for (const auto& batch : batches)
        full = full && batch.size() * static_cast<std::size_t>(options.num_processes) == round_size;
    if (even || options.drop_last) REQUIRE(full);
    for (const auto& batches : ranks)
      if (!ranges::all_of(batches, [](const Batch& batch) { return !batch.empty(); }))
        REQUIRE(false);

    // Each sample as often as promised.
    std::vector<std::size_t> count(samples);
    for (const std::size_t index : seen) {
      if (index >= samples) FAIL("sample " << index << " does not exist");
      ++count[index];
    }
    const auto expected_total = options.drop_last ? samples / round_size * round_size
                                : even ? (samples + round_size - 1) / round_size * round_size
                                       : samples;
    if (seen.size() != expected_total) REQUIRE(seen.size() == expected_total);
    for (std::size_t position = 0; position < samples; ++position) {
      const auto index = static_cast<std::size_t>(permutation[position]);
      const auto wanted = expected_total / samples + (position < expected_total % samples ? 1 : 0);
      if (count[index] != wanted) REQUIRE(count[index] == wanted);
    }

    // What is gathered for metrics is the order itself.
    if (rounds > 0 && plan.remainder() > 0)
      seen.resize(last_round + static_cast<std::size_t>(plan.remainder()));
    const auto kept = options.drop_last ? expected_total : samples;
    bool in_order = seen.size() == kept;
    for (std::size_t position = 0; in_order && position < kept; ++position)
      in_order = seen[position] == static_cast<std::size_t>(permutation[position]);
    REQUIRE(in_order);
  }
}
