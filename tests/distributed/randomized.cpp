// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Loops drawn at random: a dataset or a stream, read by every rank, dealt out or each rank's own, its
// length, batch, world, flags, accumulation, how losses are counted; and ranks that end at different
// times. Whatever they are, each sample is seen as often as promised, metrics are the data in order,
// and there are as many steps and reductions as there are windows.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>

using accel::PartialState;
using accel::test::run_ranks;

namespace {

using Accelerator = accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<accel::dynamic>,
                                       accel::on<accel::cpu>>;
using Numbers = std::vector<int64_t>;

constexpr int largest_world = 8;
constexpr int64_t of_rank = 10'000;  ///< apart from the next rank's own samples

struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}, torch::kDouble));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

struct Counter {
  int64_t end = 0, at = 0;
  std::optional<int64_t> next() { return at < end ? std::optional(at++) : std::nullopt; }
};

enum class Source { dataset, stream, dispatched, own };

struct Draw {
  Source source;
  Numbers lengths;  ///< of the data; with Source::own of each rank's
  int64_t batch, accumulation;
  bool shuffle, drop_last, split, counted;
  bool even;  ///< else each rank has what there is for it, and the loop is joined
  int workers;

  Draw(std::mt19937& random, int world) {
    const auto upto = [&](int64_t most) {
      return std::uniform_int_distribution<int64_t>(0, most)(random);
    };
    source = upto(1) == 0 ? Source::dataset : static_cast<Source>(1 + upto(2));
    split = upto(3) == 0;
    batch = (1 + upto(5)) * (split ? world : 1);
    const auto round = slice(world) * world;
    const auto length = [&](int64_t most) {
      return upto(3) == 0 ? upto(world + 1) : upto(4 * most + 3);
    };
    if (source == Source::own)  // an empty one is an error
      for (int rank = 0; rank < world; ++rank) lengths.push_back(1 + length(slice(world)));
    else
      lengths.push_back(length(round));
    accumulation = 1 + upto(3);
    shuffle = upto(1) == 0 && source == Source::dataset;
    drop_last = upto(3) == 0;
    counted = upto(1) == 0;
    even = upto(3) != 0 || source == Source::dispatched;
    workers = upto(3) != 0 ? 0 : source == Source::dataset ? 2 : 1;
    if (!even) accumulation = 1;
  }

  /// Samples of one rank in a round.
  [[nodiscard]] int64_t slice(int world) const { return split ? batch / world : batch; }

  [[nodiscard]] accel::DataLoaderOptions options() const {
    return {.batch_size = batch,
            .shuffle = shuffle,
            .drop_last = drop_last,
            .even_batches = even,
            .split_batches = split,
            .num_workers = workers,
            .data_seed = 7,
            .dispatch_batches = source == Source::dispatched,
            .already_sharded = source == Source::own};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format(
        "source {} lengths {} batch {} accumulation {} shuffle {} drop_last {} split {} counted {} "
        "even {} workers {}",
        static_cast<int>(source), fmt::join(lengths, ","), batch, accumulation, shuffle, drop_last,
        split, counted, even, workers);
  }

  /// The rounds of an epoch, and the metrics that it gathers, in order.
  struct Expected {
    int64_t rounds = 0;
    Numbers metrics{};
  };
  [[nodiscard]] Expected expected(int world) const {
    const auto each = slice(world);
    Expected all;
    if (source != Source::own) {
      const auto round = each * world, length = lengths.front();
      all.rounds = drop_last ? length / round : (length + round - 1) / round;
      for (int64_t i = 0; i < (drop_last ? all.rounds * round : length); ++i)
        all.metrics.push_back(i);
      return all;
    }
    const auto [least, most] = std::ranges::minmax(lengths);
    if (!even) {  // each rank goes to the end of its own
      all.rounds = drop_last ? most / each : (most + each - 1) / each;
      for (int rank = 0; rank < world; ++rank) {
        const auto length = lengths[static_cast<size_t>(rank)];
        for (int64_t i = 0; i < (drop_last ? length / each * each : length); ++i)
          all.metrics.push_back(rank * of_rank + i);
      }
      return all;
    }
    all.rounds = drop_last ? least / each : (most + each - 1) / each;
    for (int64_t round = 0; round < all.rounds; ++round)
      for (int rank = 0; rank < world; ++rank)
        for (auto i = round * each;
             i < std::min((round + 1) * each, lengths[static_cast<size_t>(rank)]); ++i)
          all.metrics.push_back(rank * of_rank + i);
    return all;
  }
};

/// What one rank saw of one loop.
struct Seen {
  Numbers metrics;  ///< of all ranks; where they are not even, this rank's own samples
  int64_t rounds = 0, steps = 0, reductions = 0;
  double weight = 0;
};

template <class Data>
Seen run(const PartialState& state, const Draw& draw, const Data& data) {
  accel::AcceleratorOptions options;
  options.gradient_accumulation_steps = draw.accumulation;
  options.allow_uneven_batches = !draw.even;
  Accelerator accelerator{state, options};
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, accel::data_loader(data, draw.options()));
  Seen seen;
  const auto loop = [&, &model = model, &optimizer = optimizer, &loader = loader] {
    for (auto& batch : loader) {
      accelerator.accumulate(model, [&] {
        const auto outputs = model(batch.to(torch::kDouble));
        if (draw.counted)
          accelerator.backward(outputs.sum(), batch.size(0));
        else
          accelerator.backward(outputs.mean());
        optimizer.step();
        optimizer.zero_grad();
      });
      ++seen.rounds;
      seen.steps += accelerator.sync_gradients();
      const auto all = draw.even ? accelerator.gather_for_metrics(batch) : batch;
      seen.metrics.insert(seen.metrics.end(), all.template const_data_ptr<int64_t>(),
                          all.template const_data_ptr<int64_t>() + all.numel());
    }
  };
  if (draw.even)
    loop();
  else
    accelerator.join_uneven_inputs(model, loop);
  seen.reductions = accelerator.reductions();
  seen.weight = net->w.item<double>();
  return seen;
}

Seen run(const PartialState& state, const Draw& draw) {
  const auto rank = state.process_index();
  switch (draw.source) {
    case Source::dataset: {
      std::vector<at::Tensor> samples;
      for (int64_t i = 0; i < draw.lengths.front(); ++i) samples.push_back(torch::tensor(i));
      return run(state, draw, samples);
    }
    case Source::own: {
      const auto first = rank * of_rank;
      return run(state, draw, Counter{first + draw.lengths[static_cast<size_t>(rank)], first});
    }
    default: return run(state, draw, Counter{draw.lengths.front()});
  }
}

/// Of ranks that read in step.
void check_even(const Draw& draw, int world, const std::vector<Seen>& seen) {
  const auto expected = draw.expected(world);
  const auto windows = (expected.rounds + draw.accumulation - 1) / draw.accumulation;
  for (const auto& mine : seen) {
    CHECK(mine.rounds == expected.rounds);
    CHECK(mine.steps == windows);
    CHECK(mine.reductions == (world == 1 ? 0 : windows));
    CHECK(mine.weight == seen[0].weight);
    CHECK(mine.metrics == seen[0].metrics);
  }
  auto metrics = seen[0].metrics;
  REQUIRE(metrics.size() == expected.metrics.size());
  if (draw.shuffle) std::ranges::sort(metrics);
  if (!draw.drop_last || !draw.shuffle)
    CHECK(metrics == expected.metrics);
  else  // some are left out, and none is there twice
    CHECK(std::ranges::adjacent_find(metrics, std::greater_equal<>()) == metrics.end());
}

/// Of ranks that end when they have no more: each sample once, on one of them, and every reduction on
/// all.
void check_uneven(const Draw& draw, int world, const std::vector<Seen>& seen) {
  const auto expected = draw.expected(world);
  Numbers all;
  for (const auto& mine : seen) {
    all.insert(all.end(), mine.metrics.begin(), mine.metrics.end());
    CHECK(mine.rounds <= expected.rounds);
    CHECK(mine.steps == mine.rounds);
    CHECK(mine.reductions == (world == 1 ? 0 : expected.rounds));
    CHECK(mine.weight == seen[0].weight);
  }
  CHECK(std::ranges::max(seen, {}, &Seen::rounds).rounds == expected.rounds);
  std::ranges::sort(all);
  REQUIRE(all.size() == expected.metrics.size());
  if (!draw.drop_last || !draw.shuffle)
    CHECK(all == expected.metrics);
  else
    CHECK(std::ranges::adjacent_find(all, std::greater_equal<>()) == all.end());
}

}  // namespace

TEST_CASE("loops drawn at random keep their promises") {
  // 200 of a fixed seed; the campaign (label soak) draws more, of another seed each time.
  const char* wanted = std::getenv("ACCEL_RANDOM_LOOPS");
  const int64_t each = (wanted ? std::stol(wanted) : 200) / largest_world;
  const auto seed = wanted ? Catch::getSeed() : 20;
  CAPTURE(seed);
  int64_t loops = 0;
  for (int world = 1; world <= largest_world; ++world) {
    std::mt19937 random(seed + static_cast<unsigned>(world));
    std::vector<Draw> draws;
    for (int64_t i = 0; i < each; ++i) draws.emplace_back(random, world);
    std::vector<std::vector<Seen>> of_draws(draws.size(),
                                            std::vector<Seen>(static_cast<size_t>(world)));
    run_ranks(world, [&](const PartialState& state) {
      for (size_t i = 0; i < draws.size(); ++i)
        of_draws[i][static_cast<size_t>(state.process_index())] = run(state, draws[i]);
    });
    for (size_t i = 0; i < draws.size(); ++i, ++loops) {
      CAPTURE(world, draws[i].text());
      draws[i].even ? check_even(draws[i], world, of_draws[i])
                    : check_uneven(draws[i], world, of_draws[i]);
    }
  }
  CHECK(loops == largest_world * each);
}
