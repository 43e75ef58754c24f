// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Loops drawn at random: length of the dataset, batch, world, flags, accumulation, how losses are
// counted. Whatever they are, each sample is seen as often as promised, metrics are the dataset in
// order, and there are as many steps and reductions as there are windows.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <cstdlib>
#include <random>

using accel::PartialState;
using accel::test::run_ranks;

namespace {

using Accelerator = accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<accel::dynamic>,
                                       accel::on<accel::cpu>>;

struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}, torch::kDouble));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

struct Draw {
  int64_t samples, batch, accumulation;
  bool shuffle, drop_last, split, counted;
  int workers;

  Draw(std::mt19937& random, int world) {
    const auto upto = [&](int64_t most) {
      return std::uniform_int_distribution<int64_t>(0, most)(random);
    };
    split = upto(3) == 0;
    batch = (1 + upto(5)) * (split ? world : 1);
    const auto round = split ? batch : batch * world;
    samples = upto(3) == 0 ? upto(world + 1) : upto(4 * round + 3);
    accumulation = 1 + upto(3);
    shuffle = upto(1) == 0;
    drop_last = upto(3) == 0;
    counted = upto(1) == 0;
    workers = upto(3) == 0 ? 2 : 0;
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("samples {} batch {} accumulation {} shuffle {} drop_last {} split {} "
                       "counted {} workers {}",
                       samples, batch, accumulation, shuffle, drop_last, split, counted, workers);
  }
};

/// What one rank saw of one loop.
struct Seen {
  std::vector<int64_t> metrics;
  int64_t rounds = 0, steps = 0, reductions = 0;
  double weight = 0;
};

Seen run(const PartialState& state, const Draw& draw) {
  accel::AcceleratorOptions options;
  options.gradient_accumulation_steps = draw.accumulation;
  Accelerator accelerator{state, options};
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < draw.samples; ++i) samples.push_back(torch::tensor(i));
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd,
                          accel::data_loader(samples, {.batch_size = draw.batch,
                                                       .shuffle = draw.shuffle,
                                                       .drop_last = draw.drop_last,
                                                       .split_batches = draw.split,
                                                       .num_workers = draw.workers,
                                                       .data_seed = 7}));
  Seen seen;
  for (auto& batch : loader) {
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
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
    const auto all = accelerator.gather_for_metrics(batch);
    for (int64_t i = 0; i < all.size(0); ++i)
      seen.metrics.push_back(all[i].template item<int64_t>());
  }
  seen.reductions = accelerator.reductions();
  seen.weight = net->w.item<double>();
  return seen;
}

}  // namespace

TEST_CASE("loops drawn at random keep their promises") {
  // 200 of a fixed seed; the campaign (label soak) draws more, of another seed each time.
  const char* wanted = std::getenv("ACCEL_RANDOM_LOOPS");
  const int64_t each = (wanted ? std::stol(wanted) : 200) / 5;
  const auto seed = wanted ? Catch::getSeed() : 20;
  CAPTURE(seed);
  int64_t loops = 0;
  for (const int world : {1, 2, 3, 5, 8}) {
    std::mt19937 random(seed + static_cast<unsigned>(world));
    std::vector<Draw> draws;
    for (int64_t i = 0; i < each; ++i) draws.emplace_back(random, world);
    std::vector<std::vector<Seen>> seen(static_cast<size_t>(world));
    run_ranks(world, [&](const PartialState& state) {
      for (const auto& draw : draws)
        seen[static_cast<size_t>(state.process_index())].push_back(run(state, draw));
    });
    for (size_t i = 0; i < draws.size(); ++i, ++loops) {
      const auto& draw = draws[i];
      CAPTURE(world, draw.text());
      const int64_t round = draw.split ? draw.batch : draw.batch * world;
      const int64_t rounds =
          draw.drop_last ? draw.samples / round : (draw.samples + round - 1) / round;
      const int64_t windows = (rounds + draw.accumulation - 1) / draw.accumulation;
      const int64_t counted = draw.drop_last ? rounds * round : draw.samples;
      for (const auto& ranks : seen) {
        const auto& mine = ranks[i];
        CHECK(mine.rounds == rounds);
        CHECK(mine.steps == windows);
        CHECK(mine.reductions == (world == 1 ? 0 : windows));
        CHECK(mine.weight == seen[0][i].weight);
        CHECK(mine.metrics == seen[0][i].metrics);
      }
      auto metrics = seen[0][i].metrics;
      REQUIRE(std::ssize(metrics) == counted);
      if (draw.shuffle) std::ranges::sort(metrics);
      CHECK(std::ranges::adjacent_find(metrics, std::greater_equal<>()) == metrics.end());
      if (!draw.drop_last || !draw.shuffle)
        for (int64_t k = 0; k < counted; ++k) CHECK(metrics[static_cast<size_t>(k)] == k);
    }
  }
  CHECK(loops == 5 * each);
}
