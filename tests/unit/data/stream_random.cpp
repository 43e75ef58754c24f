// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Sharding on 20,000 random settings, of datasets and of streams in each mode, against what must
// hold of any: who sees what, how often, in how many rounds, and what the metrics are made of.
#include <accel/data/index_plan.hpp>
#include <accel/data/stream_reader.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace {

using accel::RoundPlan;
using accel::RoundPlanOptions;
using accel::RoundShare;
using accel::detail::SharedStream;
using accel::detail::StreamReader;
using Numbers = std::vector<std::int64_t>;

struct Counter {
  std::int64_t end = 0, at = 0;
  std::optional<std::int64_t> next() { return at < end ? std::optional(at++) : std::nullopt; }
};

/// A batch of a rank, with the number of its samples that are no repeats.
struct Part {
  Numbers samples;
  std::int64_t real = 0;
};
using Round = std::vector<Part>;

enum class Mode { dataset, shared, dispatched, own };

struct Setting {
  Mode mode = Mode::dataset;
  RoundPlanOptions options{};
  Numbers samples{};  ///< of the stream; of each rank's with Mode::own
};

Setting draw(std::mt19937& random) {
  const auto below = [&](std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random);
  };
  Setting setting{.mode = static_cast<Mode>(below(4))};
  auto& options = setting.options;
  options.num_processes = static_cast<int>(1 + below(8));
  options.split_batches = below(3) == 0;
  options.batch_size = 1 + below(6);
  if (options.split_batches) options.batch_size *= options.num_processes;
  options.drop_last = below(3) == 0;
  options.even_batches = below(4) != 0;
  options.dispatch = setting.mode == Mode::dispatched;
  options.already_sharded = setting.mode == Mode::own;
  const int streams = setting.mode == Mode::own ? options.num_processes : 1;
  // Every length up to a few rounds is likely; in own streams none is empty (an error there).
  for (int stream = 0; stream < streams; ++stream)
    setting.samples.push_back(below(100) + (setting.mode == Mode::own ? 1 : 0));
  return setting;
}

/// What all ranks get, round by round.
std::vector<Round> rounds_of_dataset(const Setting& setting) {
  const auto& o = setting.options;
  std::vector<Round> rounds;
  for (int rank = 0; rank < o.num_processes; ++rank) {
    const accel::IndexPlan plan({.samples = setting.samples[0],
                                 .batch_size = o.batch_size,
                                 .num_processes = o.num_processes,
                                 .process_index = rank,
                                 .drop_last = o.drop_last,
                                 .even_batches = o.even_batches,
                                 .split_batches = o.split_batches});
    for (std::int64_t batch = 0; batch < plan.size(); ++batch) {
      if (std::ssize(rounds) == batch) rounds.emplace_back(o.num_processes);
      const auto indices = plan.indices(batch, accel::SampleOrder(setting.samples[0]));
      auto& part = rounds[static_cast<std::size_t>(batch)][static_cast<std::size_t>(rank)];
      part.samples.assign(indices.begin(), indices.end());
      const auto slice = plan.total_batch_size() / o.num_processes;
      const auto left = setting.samples[0] - batch * plan.total_batch_size() - rank * slice;
      part.real = std::clamp<std::int64_t>(left, 0, std::ssize(part.samples));
    }
  }
  return rounds;
}

std::vector<Round> rounds_of_stream(const Setting& setting, std::int64_t skip = 0) {
  const RoundPlan plan(setting.options);
  const int world = setting.options.num_processes;
  const bool own = setting.mode == Mode::own;
  std::vector<std::unique_ptr<StreamReader<Counter>>> readers;
  for (int rank = 0; rank < (setting.mode == Mode::dispatched ? 1 : world); ++rank) {
    const Counter counter{setting.samples[own ? static_cast<std::size_t>(rank) : 0]};
    readers.push_back(std::make_unique<StreamReader<Counter>>(
        SharedStream<Counter>{std::make_shared<Counter>(counter)}, plan, rank,
        accel::detail::StreamStart{.first_round = skip}));
  }
  std::vector<Round> rounds;
  while (true) {
    std::vector<StreamReader<Counter>::Round> read;
    Numbers found;
    for (auto& reader : readers) {
      read.push_back(reader->next());
      if (own || found.empty()) found.push_back(read.back().found);
    }
    if (!plan.exists(found)) return rounds;
    const auto shares = plan.shares(found);
    Round round(static_cast<std::size_t>(world));
    for (std::size_t rank = 0; rank < round.size(); ++rank) {
      const auto& share = shares[rank];
      auto& part = round[rank];
      part.real = share.real;
      if (setting.mode == Mode::dispatched)
        part.samples.assign(read[0].samples.begin() + share.first,
                            read[0].samples.begin() + share.first + share.given);
      else
        part.samples = read[rank].samples;
      if (std::ssize(part.samples) != share.given) throw std::logic_error("not what was planned");
    }
    rounds.push_back(std::move(round));
  }
}

/// The first thing that is wrong with the rounds, or nothing.
std::string fault_of(const Setting& setting, const std::vector<Round>& rounds) {
  const RoundPlan plan(setting.options);
  const auto& o = setting.options;
  const bool own = setting.mode == Mode::own;
  const bool fills = plan.fills();
  Numbers metrics;
  std::vector<Numbers> of_ranks(static_cast<std::size_t>(o.num_processes));
  for (const auto& round : rounds) {
    for (std::size_t rank = 0; rank < round.size(); ++rank) {
      const auto& part = round[rank];
      const auto size = std::ssize(part.samples);
      if (size > plan.slice()) return "a batch is too large";
      if ((fills || o.drop_last) && size == 0) return "a rank has no batch in a round";
      if (((fills && setting.mode != Mode::dispatched) || o.drop_last) && size != plan.slice())
        return "a batch is not full";
      if (fills && size != std::ssize(round[0].samples)) return "batches are not even";
      if (!fills && part.real != size) return "a sample is repeated";
      metrics.insert(metrics.end(), part.samples.begin(), part.samples.begin() + part.real);
      of_ranks[rank].insert(of_ranks[rank].end(), part.samples.begin(),
                            part.samples.begin() + part.real);
      const auto samples = setting.samples[own ? rank : 0];
      for (const auto sample : part.samples)
        if (sample < 0 || sample >= samples) return "no such sample";
    }
  }
  const auto up_to = [](std::int64_t end) {
    Numbers numbers(static_cast<std::size_t>(end));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  };
  if (!own) {
    auto seen = setting.samples[0];
    if (o.drop_last) seen -= seen % plan.total_batch_size();
    if (metrics != up_to(seen)) return "the metrics are not each sample once, in order";
  } else {
    const auto full = *std::ranges::min_element(setting.samples) / plan.slice() * plan.slice();
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
      if (of_ranks[rank] != up_to(o.drop_last ? full : setting.samples[rank]))
        return "a rank's own samples are not each once, in order";
  }
  return {};
}

}  // namespace

TEST_CASE("20,000 random settings keep what is promised of sharding") {
  constexpr unsigned seed = 20'251'129;
  std::mt19937 random(seed);
  for (int number = 0; number < 20'000; ++number) {
    const auto setting = draw(random);
    const bool stream = setting.mode != Mode::dataset;
    const auto rounds = stream ? rounds_of_stream(setting) : rounds_of_dataset(setting);
    auto fault = fault_of(setting, rounds);
    if (stream && fault.empty() && number % 10 == 0 && !rounds.empty()) {
      const auto skip = static_cast<std::int64_t>(random() % rounds.size());
      const auto rest = rounds_of_stream(setting, skip);
      if (rest.size() + static_cast<std::size_t>(skip) != rounds.size())
        fault = "skipping changes the number of rounds";
      for (std::size_t i = 0; i < rest.size() && fault.empty(); ++i)
        for (std::size_t rank = 0; rank < rest[i].size(); ++rank)
          if (rest[i][rank].samples != rounds[i + static_cast<std::size_t>(skip)][rank].samples)
            fault = "skipping changes the samples";
    }
    if (fault.empty()) continue;
    const auto& o = setting.options;
    CAPTURE(seed, number, static_cast<int>(setting.mode), o.num_processes, o.batch_size,
            o.split_batches, o.drop_last, o.even_batches, setting.samples);
    FAIL(fault);
  }
  SUCCEED();
}
