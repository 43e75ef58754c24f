// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Streams on several ranks: dealt out by rank 0, or each rank's own; metrics of each sample once;
// ends and failures that only one rank sees.
#include "support/scratch_folder.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <boost/hana/define_struct.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

using accel::DataLoaderOptions;
using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using accel::test::run_ranks;
using Catch::Matchers::ContainsSubstring;

namespace {

using Numbers = std::vector<std::int64_t>;
using Batches = std::vector<Numbers>;
using Ddp =
    accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;
using Ddp2 =
    accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<2>, accel::on<accel::cpu>>;

struct Counter {
  std::int64_t end = 0;
  std::int64_t fails_at = -1;
  std::int64_t first = 0;
  std::int64_t at = 0;

  std::optional<std::int64_t> next() {
    if (at == fails_at) throw std::runtime_error("no signal");
    return at < end ? std::optional(first + at++) : std::nullopt;
  }
};

/// The same, which knows where it stands.
struct Seekable : Counter {
  [[nodiscard]] nlohmann::json state() const { return at; }
  void load_state(const nlohmann::json& state) { at = state; }
};

Numbers values_of(const at::Tensor& tensor) {
  const auto plain = tensor.contiguous();
  return {plain.const_data_ptr<std::int64_t>(),
          plain.const_data_ptr<std::int64_t>() + plain.numel()};
}

/// What the ranks saw in an epoch.
struct Epoch {
  std::vector<Batches> batches{};  ///< of each rank
  Batches metrics{};               ///< what each round gathered, as rank 0 had it
  Numbers objects{};
};

/// One epoch of what `make(rank)` makes.
template <class Make>
Epoch epoch_of(int ranks, const Make& make, const DataLoaderOptions& options) {
  Epoch epoch{.batches = std::vector<Batches>(static_cast<std::size_t>(ranks))};
  Batches twice_expected, twice_gathered, objects_gathered;
  std::vector<std::int64_t> epochs_ended(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const PartialState& state) {
    const auto rank = static_cast<std::size_t>(state.process_index());
    Ddp accelerator{state};
    auto loader = accelerator.prepare(accel::data_loader(make(state.process_index()), options));
    for (auto& batch : loader) {
      epoch.batches[rank].push_back(values_of(batch));
      const auto metrics = accelerator.gather_for_metrics(batch);
      const auto twice =
          accelerator.gather_for_metrics(std::vector{batch, batch.repeat_interleave(3)});
      const auto objects = accelerator.gather_for_metrics(values_of(batch));
      if (rank != 0) continue;
      epoch.metrics.push_back(values_of(metrics));
      for (const auto& tensor : {metrics, metrics.repeat_interleave(3)})
        twice_expected.push_back(values_of(tensor));
      for (const auto& tensor : twice) twice_gathered.push_back(values_of(tensor));
      objects_gathered.push_back(objects);
      epoch.objects.insert(epoch.objects.end(), objects.begin(), objects.end());
    }
    epochs_ended[rank] = loader.epoch();
  });
  CHECK(twice_gathered == twice_expected);
  CHECK(objects_gathered == epoch.metrics);
  CHECK(epochs_ended == std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 1));
  return epoch;
}

Numbers flat(const Batches& batches) {
  Numbers all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

Numbers up_to(std::int64_t end) {
  Numbers numbers(static_cast<std::size_t>(end));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// A dataset whose sample 6 is lost on rank 1.
struct Broken {
  int rank;
  [[nodiscard]] std::size_t size() const { return 8; }
  [[nodiscard]] at::Tensor get(std::size_t index) const {
    if (rank == 1 && index == 6) throw std::runtime_error("the disk is gone");
    return torch::zeros({});
  }
};

struct Parts {
  BOOST_HANA_DEFINE_STRUCT(Parts, (at::Tensor, a), (at::Tensor, b));
};

}  // namespace

TEST_CASE("rounds of a stream that every rank reads: Accelerate's shards, with metrics of each "
          "sample once") {
  for (const std::int64_t samples : {7, 10, 1, 3, 8}) {  // T19 has 8 numbers of 7
    const auto epoch = epoch_of(2, [&](int) { return Counter{samples}; }, {.batch_size = 2});
    CHECK(flat(epoch.metrics) == up_to(samples));
    CHECK(epoch.objects == up_to(samples));
  }
  const auto seven =
      epoch_of(2, [](int) { return Counter{7}; }, {.batch_size = 2, .num_workers = 1});
  CHECK(seven.batches == std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 0}}});
  CHECK(seven.metrics == Batches{{0, 1, 2, 3}, {4, 5, 6}});
  CHECK(epoch_of(3, [](int) { return Counter{0}; }, {.batch_size = 2}).batches ==
        std::vector<Batches>(3));
}

TEST_CASE("rounds that rank 0 deals out: Accelerate's rows") {
  const auto run = [](std::int64_t samples, int ranks, DataLoaderOptions options) {
    options.dispatch_batches = true;
    // Only rank 0's stream is read.
    return epoch_of(
        ranks, [=](int rank) { return Counter{rank == 0 ? samples : 0, rank == 0 ? -1 : 0}; },
        options);
  };
  const auto seven = run(7, 2, {.batch_size = 2});
  CHECK(seven.batches == std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 0}}});
  CHECK(seven.metrics == Batches{{0, 1, 2, 3}, {4, 5, 6}});
  const auto ten = run(10, 2, {.batch_size = 2, .num_workers = 1});
  CHECK(ten.batches == std::vector<Batches>{{{0, 1}, {4, 5}, {8}}, {{2, 3}, {6, 7}, {9}}});
  CHECK(ten.metrics == Batches{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}});
  const auto split = run(11, 2, {.batch_size = 4, .split_batches = true});
  CHECK(split.batches == std::vector<Batches>{{{0, 1}, {4, 5}, {8, 9}}, {{2, 3}, {6, 7}, {10, 0}}});
  CHECK(split.metrics == Batches{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10}});
  CHECK(run(9, 2, {.batch_size = 4, .split_batches = true}).batches ==
        std::vector<Batches>{{{0, 1}, {4, 5}, {8}}, {{2, 3}, {6, 7}, {0}}});
  CHECK(run(7, 2, {.batch_size = 2, .drop_last = true}).batches ==
        std::vector<Batches>{{{0, 1}}, {{2, 3}}});
  CHECK(run(1, 2, {.batch_size = 2}).batches == std::vector<Batches>{{{0}}, {{0}}});
  CHECK(run(11, 4, {.batch_size = 2}).batches ==
        std::vector<Batches>{{{0, 1}, {8}}, {{2, 3}, {9}}, {{4, 5}, {10}}, {{6, 7}, {0}}});
  CHECK(run(9, 4, {.batch_size = 2}).batches ==
        std::vector<Batches>{{{0, 1}, {8}}, {{2, 3}, {0}}, {{4, 5}, {1}}, {{6, 7}, {2}}});
  // T18: a first round smaller than the world gave empty batches.
  const auto tiny = run(1, 4, {.batch_size = 2});
  CHECK(tiny.batches == std::vector<Batches>(4, {{0}}));
  CHECK(tiny.metrics == Batches{{0}});
  CHECK(run(0, 3, {.batch_size = 2}).batches == std::vector<Batches>(3));
}

TEST_CASE("row 24: a last round of sequences of other lengths is padded in itself") {
  struct Sequences {  // i times i, for i from 1 to 5
    std::int64_t at = 0;
    std::optional<at::Tensor> next() {
      if (at == 5) return std::nullopt;
      ++at;
      return torch::full({at}, at, torch::kLong);
    }
  };
  struct Outcome {
    Batches values{};
    Numbers gathered{};
  };
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    Ddp accelerator{state};
    auto loader = accelerator.prepare(accel::data_loader(
        Sequences(), {.batch_size = 2, .dispatch_batches = true}, accel::PadCollate{}));
    Outcome outcome;
    for (auto& batch : loader) {
      for (std::int64_t row = 0; row < batch.values.size(0); ++row)
        outcome.values.push_back(values_of(batch.values[row]));
      const auto lengths = values_of(accelerator.gather_for_metrics(batch.lengths));
      outcome.gathered.insert(outcome.gathered.end(), lengths.begin(), lengths.end());
    }
    return outcome;
  });
  CHECK(outcomes[0].values == Batches{{1, 0, 0, 0}, {2, 2, 0, 0}, {5, 5, 5, 5, 5}});
  CHECK(outcomes[1].values == Batches{{3, 3, 3, 0}, {4, 4, 4, 4}, {1, 0, 0, 0, 0}});
  for (const auto& outcome : outcomes) CHECK(outcome.gathered == Numbers{1, 2, 3, 4, 5});
  // Without padding every rank is told what to use.
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp accelerator{state};
    auto loader = accelerator.prepare(
        accel::data_loader(Sequences(), {.batch_size = 2, .dispatch_batches = true}));
    for (auto& batch : loader) (void)batch;
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("accel::PadCollate"));
}

TEST_CASE("B16 streams that are each rank's own: nothing is skipped, and the shorter ones repeat") {
  const auto make = [](std::vector<std::int64_t> lengths) {
    return [lengths](int rank) {
      return Counter{lengths[static_cast<std::size_t>(rank)], -1, 100 * rank};
    };
  };
  const DataLoaderOptions options{.batch_size = 2, .already_sharded = true};
  const auto same = epoch_of(2, make({6, 6}), options);
  CHECK(same.batches ==
        std::vector<Batches>{{{0, 1}, {2, 3}, {4, 5}}, {{100, 101}, {102, 103}, {104, 105}}});
  CHECK(same.metrics == Batches{{0, 1, 100, 101}, {2, 3, 102, 103}, {4, 5, 104, 105}});
  auto read_ahead = options;
  read_ahead.num_workers = 1;
  for (const auto& with : {options, read_ahead}) {
    const auto other = epoch_of(3, make({5, 1, 2}), with);
    CHECK(other.batches == std::vector<Batches>{{{0, 1}, {2, 3}, {4, 0}},
                                                {{100, 100}, {100, 100}, {100, 100}},
                                                {{200, 201}, {200, 201}, {200, 201}}});
    CHECK(other.metrics == Batches{{0, 1, 100, 200, 201}, {2, 3}, {4}});
    auto drop = with;
    drop.drop_last = true;
    CHECK(epoch_of(2, make({7, 4}), drop).metrics == Batches{{0, 1, 100, 101}, {2, 3, 102, 103}});
    CHECK(epoch_of(2, make({7, 0}), drop).metrics.empty());
    CHECK(epoch_of(2, make({0, 0}), with).metrics.empty());
  }
  const auto errors = errors_of_ranks(3, [&](const PartialState& state) {
    Ddp accelerator{state};
    auto loader =
        accelerator.prepare(accel::data_loader(make({4, 0, 4})(state.process_index()), options));
    for ([[maybe_unused]] auto& batch : loader) throw std::logic_error("a batch was given");
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("the stream of rank 1 is empty"));
}

TEST_CASE("batches of any structure and dtype are dealt out") {
  using Sample = std::tuple<Parts, std::string, std::map<std::string, at::Tensor>,
                            std::pair<double, std::vector<at::Tensor>>, torch::data::Example<>>;
  const auto make = [] {
    std::list<Sample> samples;
    for (int i = 0; i < 4; ++i) {
      const auto t = torch::full({2}, i);
      samples.emplace_back(Parts{t.to(at::kHalf), t.to(at::kBool)}, "sample " + std::to_string(i),
                           std::map<std::string, at::Tensor>{{"x", t.to(at::kComplexDouble)},
                                                             {"y", t.to(at::kByte)}},
                           std::pair(i + 0.5, std::vector{t.to(at::kBFloat16), torch::empty({0})}),
                           torch::data::Example<>(t.to(at::kInt), torch::tensor(i)));
    }
    return samples;
  };
  const auto compared_by =
      results_of_ranks<std::vector<std::string>>(2, [&](const PartialState& state) {
        Ddp accelerator{state};
        const auto whole = accel::data_loader(make(), {.batch_size = 4});
        auto loader = accelerator.prepare(
            accel::data_loader(make(), {.batch_size = 2, .dispatch_batches = true}));
        std::vector<std::string> compared;
        for (auto& batch : loader) {
          const auto& [parts, text, map, pair, example] = batch;
          auto it = whole.begin();
          const auto& [all_parts, all_text, all_map, all_pair, all_example] = *it;
          const auto first = 2 * state.process_index();
          const auto compare = [&](std::string name, const at::Tensor& one, const at::Tensor& all) {
            const bool same = one.scalar_type() == all.scalar_type() &&
                              torch::equal(one, all.narrow(0, first, 2));
            compared.push_back((same ? "" : "another ") + std::move(name));
          };
          compare("half", parts.a, all_parts.a);
          compare("bool", parts.b, all_parts.b);
          compared.insert(compared.end(), text.begin(), text.end());
          compare("complex", map.at("x"), all_map.at("x"));
          compare("byte", map.at("y"), all_map.at("y"));
          compare("double", pair.first, all_pair.first);
          compare("bfloat16", pair.second.at(0), all_pair.second.at(0));
          compare("empty", pair.second.at(1), all_pair.second.at(1));
          compare("data", example.data, all_example.data);
          compare("target", example.target, all_example.target);
        }
        return compared;
      });
  for (const int rank : {0, 1})
    CHECK(compared_by[static_cast<std::size_t>(rank)] ==
          std::vector<std::string>{"half", "bool", "sample " + std::to_string(2 * rank),
                                   "sample " + std::to_string(2 * rank + 1), "complex", "byte",
                                   "double", "bfloat16", "empty", "data", "target"});
}

TEST_CASE("a slice function cuts a batch that was dealt out, and no_collate is cut by samples") {
  std::vector<Batches> plain_batches(2), columns(2);
  std::vector<Numbers> rows(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<std::size_t>(state.process_index());
    Ddp accelerator{state};
    const DataLoaderOptions options{.batch_size = 2, .dispatch_batches = true};
    auto plain = accelerator.prepare(accel::data_loader(Counter{3}, options, accel::no_collate));
    for (auto& batch : plain) plain_batches[rank].push_back(batch);
    // Columns: the samples stand along dim 1.
    auto loader = accelerator.prepare(accel::data_loader(
        Counter{3}, options,
        [](const Numbers& samples) { return torch::tensor(samples).unsqueeze(0); },
        [&rows, rank](const at::Tensor& batch, const accel::RowRange& range) {
          rows[rank].push_back(range.rows);
          return batch.narrow(1, range.first, range.count);
        }));
    for (auto& batch : loader) columns[rank].push_back(values_of(batch));
  });
  const std::vector<Batches> dealt{{{0, 1}}, {{2, 0}}};
  CHECK(plain_batches == dealt);
  CHECK(columns == dealt);
  for (const auto& seen : rows) CHECK(std::ranges::all_of(seen, [](auto n) { return n == 4; }));
  CHECK(!rows[0].empty());
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp accelerator{state};
    auto loader = accelerator.prepare(accel::data_loader(
        Counter{3}, {.batch_size = 2, .dispatch_batches = true},
        [](const Numbers& samples) { return torch::tensor(samples).unsqueeze(0); }));
    for ([[maybe_unused]] auto& batch : loader) throw std::logic_error("a batch was given");
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("of shape [1, 4]"));
}

TEST_CASE("a failure on one rank is one on all, in its place") {
  for (const int workers : {0, 1})
    for (const int mode : {0, 1, 2})
      for (const int failing : {0, 1}) {
        if (mode == 1 && failing == 1) continue;  // only rank 0 reads
        CAPTURE(workers, mode, failing);
        std::vector<int> batches(2);
        const auto errors = errors_of_ranks(2, [&](const PartialState& state) {
          const int rank = state.process_index();
          Ddp accelerator{state};
          auto loader = accelerator.prepare(accel::data_loader(
              Counter{20, rank == failing ? 5 : -1}, {.batch_size = 2,
                                                      .num_workers = workers,
                                                      .dispatch_batches = mode == 1,
                                                      .already_sharded = mode == 2}));
          for (auto& batch : loader) {
            ++batches[static_cast<std::size_t>(rank)];
            (void)accelerator.gather(batch);
          }
        });
        for (int rank = 0; rank < 2; ++rank) {
          const auto& error = errors[static_cast<std::size_t>(rank)];
          CHECK_THAT(error, ContainsSubstring("reading sample 5 of the stream failed: no signal"));
          if (rank != failing)
            CHECK_THAT(error,
                       ContainsSubstring("the stream failed on rank " + std::to_string(failing)));
        }
        CHECK(batches[0] == batches[1]);
        CHECK(batches[0] == (mode == 2 ? 2 : 1));
      }
}

TEST_CASE("streams that should be one and end at different places are told on every rank") {
  const auto errors = errors_of_ranks(3, [](const PartialState& state) {
    Ddp accelerator{state};
    auto loader = accelerator.prepare(
        accel::data_loader(Counter{state.process_index() == 1 ? 6 : 20}, {.batch_size = 1}));
    for (auto& batch : loader) (void)accelerator.gather(batch);
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, ContainsSubstring("another length on rank 1: 6 samples, and 9 on rank 0"));
    CHECK_THAT(error, ContainsSubstring("already_sharded"));
  }
}

TEST_CASE(
    "ranks that prepare different streams, or might have different numbers of batches, are told") {
  const auto options = errors_of_ranks(2, [](const PartialState& state) {
    Ddp accelerator{state};
    (void)accelerator.prepare(
        accel::data_loader(Counter{9}, {.batch_size = 1 + state.process_index()}));
  });
  for (const auto& error : options)
    CHECK_THAT(error, ContainsSubstring("'batch_size 1' where rank 1 has 'batch_size 2'"));
  const auto uneven = errors_of_ranks(2, [](const PartialState& state) {
    Ddp accelerator{state};
    (void)accelerator.prepare(
        accel::data_loader(Counter{9}, {.batch_size = 2, .even_batches = false}));
  });
  for (const auto& error : uneven) CHECK_THAT(error, ContainsSubstring("allow_uneven_batches"));
  std::vector<Batches> batches(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp accelerator{state, {.allow_uneven_batches = true}};
    auto loader = accelerator.prepare(
        accel::data_loader(Counter{5}, {.batch_size = 2, .even_batches = false}));
    for (auto& batch : loader)
      batches[static_cast<std::size_t>(state.process_index())].push_back(values_of(batch));
  });
  CHECK(batches == std::vector<Batches>{{{0, 1}, {4}}, {{2, 3}}});
}

TEST_CASE("streams of each rank's own that may be uneven: every rank goes to its own end, and no "
          "sample is a repeat") {
  const auto run = [](std::vector<std::int64_t> lengths, const DataLoaderOptions& options) {
    std::vector<Batches> batches(lengths.size());
    run_ranks(static_cast<int>(lengths.size()), [&](const PartialState& state) {
      const int rank = state.process_index();
      Ddp accelerator{state, {.allow_uneven_batches = true}};
      auto loader = accelerator.prepare(accel::data_loader(
          Counter{lengths[static_cast<std::size_t>(rank)], -1, 100 * rank}, options));
      for (auto& batch : loader)
        batches[static_cast<std::size_t>(rank)].push_back(values_of(batch));
    });
    return batches;
  };
  const DataLoaderOptions kept{.batch_size = 2, .even_batches = false, .already_sharded = true};
  CHECK(run({5, 2}, kept) == std::vector<Batches>{{{0, 1}, {2, 3}, {4}}, {{100, 101}}});
  CHECK(run({0, 1, 3}, kept) == std::vector<Batches>{{}, {{100}}, {{200, 201}, {202}}});
  const DataLoaderOptions dropped{.batch_size = 2, .drop_last = true, .already_sharded = true};
  CHECK(run({5, 2}, dropped) == std::vector<Batches>{{{0, 1}, {2, 3}}, {{100, 101}}});
  // Where the loops do keep in step, metrics are everything.
  std::vector<Batches> gathered(3);
  run_ranks(3, [&](const PartialState& state) {
    const int rank = state.process_index();
    Ddp accelerator{state, {.allow_uneven_batches = true}};
    auto loader = accelerator.prepare(accel::data_loader(Counter{3, -1, 100 * rank}, kept));
    for (auto& batch : loader)
      gathered[static_cast<std::size_t>(rank)].push_back(
          values_of(accelerator.gather_for_metrics(batch)));
  });
  for (const auto& all : gathered) CHECK(all == Batches{{0, 1, 100, 101, 200, 201}, {2, 102, 202}});
}

TEST_CASE("the last batch of a stream closes the accumulation window") {
  for (const int mode : {0, 1, 2}) {
    std::vector<std::vector<bool>> syncs(2);
    run_ranks(2, [&](const PartialState& state) {
      const auto rank = static_cast<std::size_t>(state.process_index());
      Ddp2 accelerator{state};
      auto net = std::make_shared<torch::nn::LinearImpl>(1, 1);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer, loader] = accelerator.prepare(
          net, sgd,
          accel::data_loader(
              Counter{mode == 2 ? 5 : 10},
              {.batch_size = 1, .dispatch_batches = mode == 1, .already_sharded = mode == 2}));
      for (auto& batch : loader)
        accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
          accelerator.backward(model(batch.to(at::kFloat).unsqueeze(1)).sum());
          optimizer.step();
          optimizer.zero_grad();
          syncs[rank].push_back(accelerator.sync_gradients());
        });
    });
    CHECK(syncs[0] == std::vector<bool>{false, true, false, true, true});
    CHECK(syncs[1] == syncs[0]);
  }
}

TEST_CASE("save_state keeps the positions of streams, each rank's own too") {
  const accel_test::ScratchFolder folder;
  for (const int mode : {0, 1, 2}) {
    const DataLoaderOptions options{.batch_size = 2,
                                    .num_workers = 1,
                                    .dispatch_batches = mode == 1,
                                    .already_sharded = mode == 2};
    const auto path = folder.path() / std::to_string(mode);
    const auto make = [&](int rank, std::int64_t jumps) {
      return Seekable{{mode == 2 ? 8 + rank : 16, jumps, mode == 2 ? 100 * rank : 0}};
    };
    std::vector<Batches> straight(2), resumed(2);
    std::vector<std::int64_t> epochs_ended(2);
    run_ranks(2, [&](const PartialState& state) {
      const auto rank = static_cast<std::size_t>(state.process_index());
      Ddp accelerator{state};
      auto loader =
          accelerator.prepare(accel::data_loader(make(state.process_index(), -1), options));
      int batches = 0;
      for (auto& batch : loader) {
        if (batches >= 2) straight[rank].push_back(values_of(batch));
        if (++batches == 2) accelerator.save_state(path);
      }
    });
    run_ranks(2, [&](const PartialState& state) {
      const auto rank = static_cast<std::size_t>(state.process_index());
      Ddp accelerator{state};
      // Fails where it would be read instead of moved on (the first round is read again).
      auto loader = accelerator.prepare(
          accel::data_loader(make(state.process_index(), mode == 2 ? 2 : 4), options));
      accelerator.load_state(path);
      for (auto& batch : loader) resumed[rank].push_back(values_of(batch));
      epochs_ended[rank] = loader.epoch();
    });
    CHECK(epochs_ended == std::vector<std::int64_t>{1, 1});
    CHECK(resumed == straight);
    CHECK(straight[0].size() == (mode == 2 ? 3 : 2));
  }
  const auto errors = errors_of_ranks(3, [&](const PartialState& state) {
    Ddp accelerator{state};
    auto loader = accelerator.prepare(
        accel::data_loader(Seekable{{9}}, {.batch_size = 2, .already_sharded = true}));
    accelerator.load_state(folder.path() / "2");
  });
  for (const auto& error : errors) CHECK(!error.empty());
  CHECK_THAT(errors[0],
             ContainsSubstring("in streams of 2 ranks (total batch size 4), and there are 3 now"));
}

TEST_CASE("a dataset that fails on one rank tells the ranks that wait for it") {
  const auto workers = GENERATE(0, 2);
  CAPTURE(workers);
  accel::CommunicatorOptions options;
  options.collective_timeout = std::chrono::milliseconds(3000);
  const auto body = [workers](const PartialState& state) {
    Ddp accelerator{state};
    auto loader = accelerator.prepare(accel::data_loader(
        Broken{state.process_index()}, {.batch_size = 2, .num_workers = workers}));
    for (auto& batch : loader) (void)accelerator.gather(batch);
  };
  const auto errors = errors_of_ranks(2, body, options);
  CHECK_THAT(errors[1], ContainsSubstring("the disk is gone"));
  CHECK_THAT(errors[0],
             ContainsSubstring(
                 "another rank stopped: reading the samples [6, 7] failed: the disk is gone"));
}
