// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Loops drawn at random: a dataset or a stream, read by every rank, dealt out or each rank's own, its
// length, batch, world, flags, accumulation, how losses are counted, the backend; a loop that was left
// before, a validation inside; and ranks that end at different times. Whatever they are, each sample is
// seen as often as promised, metrics are the data in order, there are as many steps and reductions as
// there are windows, and the weight is what the batches that were seen say.
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

template <class Backend>
using Accelerator = accel::Accelerator<Backend, accel::fp32, accel::accumulate<accel::dynamic>,
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
enum class Strategy { ddp, zero1, zero2, zero3 };

struct Draw {
  Source source;
  Numbers lengths;  ///< of the data; with Source::own of each rank's
  int64_t batch, accumulation;
  bool shuffle, drop_last, split, counted;
  bool even;  ///< else each rank has what there is for it, and the loop is joined
  int workers;
  Strategy strategy = Strategy::ddp;
  int64_t left_after = 0;  ///< rounds of a loop that is left before the one that counts
  bool validates = false;  ///< in the middle

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
    if (!even) accumulation = upto(1) == 0 ? 1 : accumulation;
    if (source != Source::dataset || !even) return;
    strategy = static_cast<Strategy>(upto(3));
    left_after = upto(2) == 0 ? upto(3) : 0;
    validates = upto(2) == 0;
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
        "even {} workers {} strategy {} left_after {} validates {}",
        static_cast<int>(source), fmt::join(lengths, ","), batch, accumulation, shuffle, drop_last,
        split, counted, even, workers, static_cast<int>(strategy), left_after, validates);
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

/// A batch of a rank, repeats included.
struct Micro {
  double sum = 0, count = 0;
};

/// What one rank saw of one loop.
struct Seen {
  Numbers metrics;  ///< of all ranks; where they are not even, this rank's own samples
  int64_t rounds = 0, steps = 0, reductions = 0;
  bool validated = true;  ///< all validations gave the data in order
  double weight = 0;
  std::vector<Micro> left, batches;  ///< of the loop that was left, and of the one that counts
};

template <class Backend, class Data>
Seen run(const PartialState& state, const Draw& draw, const Data& data) {
  accel::AcceleratorOptions options;
  options.gradient_accumulation_steps = draw.accumulation;
  options.allow_uneven_batches = !draw.even;
  Accelerator<Backend> accelerator{state, options};
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, accel::data_loader(data, draw.options()));
  Seen seen;
  const auto train = [&, &model = model, &optimizer = optimizer](const at::Tensor& batch) {
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      const auto outputs = model(batch.to(torch::kDouble));
      if (draw.counted)
        accelerator.backward(outputs.sum(), batch.size(0));
      else
        accelerator.backward(outputs.mean());
      optimizer.step();
      optimizer.zero_grad();
    });
    return Micro{batch.sum().to(torch::kDouble).template item<double>(),
                 static_cast<double>(batch.size(0))};
  };
  const auto validate = [&] {
    auto numbers = accelerator.prepare(
        accel::data_loader(std::vector<int64_t>{0, 1, 2, 3, 4}, {.batch_size = 2}));
    std::vector<at::Tensor> all;
    for (auto& batch : numbers) all.push_back(accelerator.gather_for_metrics(batch));
    seen.validated = seen.validated && torch::equal(torch::cat(all), torch::arange(5));
  };
  const auto loop = [&, &loader = loader] {
    for (auto& batch : loader) {
      seen.batches.push_back(train(batch));
      ++seen.rounds;
      seen.steps += accelerator.sync_gradients();
      if (draw.validates && seen.rounds % 2 == 1) validate();
      const auto all = draw.even ? accelerator.gather_for_metrics(batch) : batch;
      seen.metrics.insert(seen.metrics.end(), all.template const_data_ptr<int64_t>(),
                          all.template const_data_ptr<int64_t>() + all.numel());
    }
  };
  for (auto batch = loader.begin(); batch != loader.end(); ++batch) {
    if (std::ssize(seen.left) == draw.left_after) break;
    seen.left.push_back(train(*batch));
  }
  const auto reductions = accelerator.reductions();
  if constexpr (accel::JoinsUnevenInputs<Backend>) {
    if (!draw.even)
      accelerator.join_uneven_inputs(model, loop);
    else
      loop();
  } else {
    loop();
  }
  seen.reductions = accelerator.reductions() - reductions;
  accelerator.free_memory();  // what is sharded is whole then
  seen.weight = net->w.template item<double>();
  return seen;
}

Seen run(const PartialState& state, const Draw& draw) {
  const auto rank = state.process_index();
  switch (draw.source) {
    case Source::dataset: {
      std::vector<at::Tensor> samples;
      for (int64_t i = 0; i < draw.lengths.front(); ++i) samples.push_back(torch::tensor(i));
      switch (draw.strategy) {
        case Strategy::ddp: return run<accel::ddp>(state, draw, samples);
        case Strategy::zero1: return run<accel::sharded<accel::zero1>>(state, draw, samples);
        case Strategy::zero2: return run<accel::sharded<accel::zero2>>(state, draw, samples);
        default: return run<accel::sharded<accel::zero3>>(state, draw, samples);
      }
    }
    case Source::own: {
      const auto first = rank * of_rank;
      return run<accel::ddp>(state, draw,
                             Counter{first + draw.lengths[static_cast<size_t>(rank)], first});
    }
    default: return run<accel::ddp>(state, draw, Counter{draw.lengths.front()});
  }
}

/// Minus the sum over closed windows of their mean gradient, which is the mean of what was seen: over
/// the samples of all ranks where losses are counted; else over micro-batches and ranks of the means.
double weight_after(const Draw& draw, const std::vector<std::vector<Micro>>& of_ranks,
                    bool closes_at_end) {
  int64_t rounds = 0;
  for (const auto& batches : of_ranks) rounds = std::max(rounds, std::ssize(batches));
  double weight = 0;
  for (int64_t first = 0; first < rounds; first += draw.accumulation) {
    const auto last = std::min(first + draw.accumulation, rounds);
    if (last - first < draw.accumulation && !closes_at_end) break;
    Micro all;
    double means = 0;
    for (const auto& batches : of_ranks) {
      // A window that ends early on a rank is the mean over what that rank saw.
      const auto end = std::min(last, std::ssize(batches));
      for (auto round = first; round < end; ++round) {
        const auto& [sum, count] = batches[static_cast<size_t>(round)];
        all.sum += sum;
        all.count += count;
        means += sum / count / static_cast<double>(end - first);
      }
    }
    weight -= draw.counted ? all.sum / all.count : means / static_cast<double>(of_ranks.size());
  }
  return weight;
}

void check_weight(const Draw& draw, const std::vector<Seen>& seen) {
  std::vector<std::vector<Micro>> left, counting;
  for (const auto& mine : seen) {
    left.push_back(mine.left);
    counting.push_back(mine.batches);
  }
  // A loop that ran to its end was not left.
  const bool ended = std::ssize(seen[0].left) < draw.left_after ||
                     std::ssize(seen[0].left) == std::ssize(seen[0].batches);
  const auto expected =
      weight_after(draw, left, ended) + weight_after(draw, counting, /*closes_at_end=*/true);
  CHECK(seen[0].weight == Catch::Approx(expected).epsilon(1e-9).margin(1e-9));
}

/// Of ranks that read in step.
void check_even(const Draw& draw, int world, const std::vector<Seen>& seen) {
  const auto expected = draw.expected(world);
  const auto windows = (expected.rounds + draw.accumulation - 1) / draw.accumulation;
  for (const auto& mine : seen) {
    CHECK(mine.rounds == expected.rounds);
    CHECK(mine.steps == windows);
    const bool each = draw.strategy == Strategy::zero2 || draw.strategy == Strategy::zero3;
    const bool alone = world == 1 && draw.strategy == Strategy::ddp;
    CHECK(mine.reductions == (alone ? 0 : each ? expected.rounds : windows));
    CHECK(mine.weight == seen[0].weight);
    CHECK(mine.metrics == seen[0].metrics);
    CHECK(mine.validated);
  }
  check_weight(draw, seen);
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
  const auto windows = [&](int64_t rounds) {
    return (rounds + draw.accumulation - 1) / draw.accumulation;
  };
  Numbers all;
  for (const auto& mine : seen) {
    all.insert(all.end(), mine.metrics.begin(), mine.metrics.end());
    CHECK(mine.rounds <= expected.rounds);
    CHECK(mine.steps == windows(mine.rounds));
    CHECK(mine.reductions == (world == 1 ? 0 : windows(expected.rounds)));
    CHECK(mine.weight == seen[0].weight);
  }
  check_weight(draw, seen);
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
