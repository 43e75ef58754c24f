// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Metrics over ranks: those of an epoch are the dataset's, once and in order, whatever was repeated to
// make its last round even.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <numeric>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::results_of_ranks;
using accel::test::run_ranks;

TEST_CASE("B11 a value of each rank's batch is no sample: the last round cuts none of them") {
  struct Outcome {
    std::vector<int64_t> losses{}, words{}, samples{};
  };
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    Ddp<> accelerator{state};
    std::vector<at::Tensor> samples;
    for (int i = 0; i < 9; ++i) samples.push_back(torch::tensor(float(i)));
    auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
    Outcome outcome;
    for (auto& batch : loader) {
      outcome.losses.push_back(accelerator.gather_for_metrics(batch.mean()).numel());
      const std::vector<std::string> word{"rank " + std::to_string(state.process_index())};
      outcome.words.push_back(std::ssize(accelerator.gather_for_metrics(word)));
      outcome.samples.push_back(accelerator.gather_for_metrics(batch).numel());
    }
    return outcome;
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.losses == std::vector<int64_t>{2, 2, 2});
    CHECK(outcome.words == std::vector<int64_t>{2, 2, 2});
    CHECK(outcome.samples == std::vector<int64_t>{4, 4, 1});
  }
}

TEST_CASE("B11 metrics over an epoch are the dataset, once and in order") {
  std::vector<at::Tensor> seen(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    std::vector<at::Tensor> samples;
    for (int i = 0; i < 9; ++i) samples.push_back(torch::tensor(i));
    auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
    std::vector<at::Tensor> gathered;
    for (auto& batch : loader) gathered.push_back(accelerator.gather_for_metrics(batch));
    seen[static_cast<size_t>(state.process_index())] = torch::cat(gathered);
  });
  for (const auto& all : seen) CHECK(torch::equal(all, torch::arange(9)));
}

TEST_CASE("B11 metrics of several rows a sample keep them all") {
  for (const int size : {1, 2}) {
    std::vector<at::Tensor> seen(static_cast<size_t>(size));
    run_ranks(size, [&](const PartialState& state) {
      Ddp<accel::accumulate<1>> accelerator{state};
      std::vector<at::Tensor> samples;
      for (int i = 0; i < 5; ++i) samples.push_back(torch::tensor(i));
      auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
      std::vector<at::Tensor> gathered;
      for (auto& batch : loader)
        gathered.push_back(accelerator.gather_for_metrics(batch.repeat_interleave(10)));
      seen[static_cast<size_t>(state.process_index())] = torch::cat(gathered);
    });
    for (const auto& all : seen) CHECK(torch::equal(all, torch::arange(5).repeat_interleave(10)));
  }
}

TEST_CASE("B11 rows that no count of samples explains are all kept, and one sentence says so") {
  std::vector<std::vector<int64_t>> kept(2);
  std::vector<std::vector<std::string>> sentences(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto loaders = std::make_shared<accel::ActiveLoaders>();
    const auto rank = static_cast<size_t>(state.process_index());
    accel::detail::MetricsGatherer metrics(
        loaders, [&](const std::string& sentence) { sentences[rank].push_back(sentence); });
    const auto rows = [&](int64_t here, int64_t there) {
      const auto mine = torch::zeros({rank == 0 ? here : there});
      kept[rank].push_back(
          metrics.gather(state.communicator(), mine, accel::CallSite::current()).numel());
    };
    // 3 samples in a round of 4, so that rank 1 has a repeat.
    accel::ActiveLoaders::Iteration round(loaders, 3, 4);
    rows(2, 2);
    round.reached_last_batch();
    rows(2, 2);                                         // a row a sample
    rows(10, 10);                                       // five
    rows(1, 1);                                         // one a batch
    kept[rank].push_back(std::ssize(sentences[rank]));  // nothing to say so far
    rows(8, 4);                                         // which together could be three a sample
    rows(3, 2);
    const std::vector<int> words(rank == 0 ? 3 : 1);
    kept[rank].push_back(
        std::ssize(metrics.gather(state.communicator(), words, accel::CallSite::current())));
  });
  for (const auto& rows : kept) CHECK(rows == std::vector<int64_t>{4, 3, 15, 2, 0, 12, 5, 4});
  for (const auto& said : sentences) {
    REQUIRE(said.size() == 1);
    CHECK_THAT(said[0],
               Catch::Matchers::ContainsSubstring("8, 4 rows or objects, and batches of 2, 2"));
  }
}

TEST_CASE("metrics that are gathered outside of a loop: one sentence says that repeats stay") {
  std::vector<std::vector<std::string>> sentences(2);
  const auto rows = results_of_ranks<int64_t>(2, [&](const PartialState& state) {
    auto& mine = sentences[static_cast<size_t>(state.process_index())];
    accel::detail::MetricsGatherer metrics(
        std::make_shared<accel::ActiveLoaders>(),
        [&](const std::string& sentence) { mine.push_back(sentence); });
    int64_t all = 0;
    for (int i = 0; i < 2; ++i)
      all += metrics.gather(state.communicator(), torch::ones({2}), accel::CallSite::current())
                 .numel();
    return all;
  });
  CHECK(rows == std::vector<int64_t>{8, 8});
  for (const auto& said : sentences) {
    REQUIRE(said.size() == 1);
    CHECK_THAT(said[0], Catch::Matchers::ContainsSubstring("outside of a loop"));
  }
}

TEST_CASE("B11 without even_batches nothing is a repeat, and ranks may end apart") {
  std::vector<std::vector<int64_t>> seen(2);
  run_ranks(2, [&](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.allow_uneven_batches = true;
    Ddp<> accelerator{state, options};
    std::vector<at::Tensor> samples;
    for (int i = 0; i < 7; ++i) samples.push_back(torch::tensor(i));
    auto loader =
        accelerator.prepare(accel::data_loader(samples, {.batch_size = 2, .even_batches = false}));
    for (auto& batch : loader) {
      // Four rows a sample: 8 and 4 in the last round, which is a multiple of its 4 places.
      const auto all = accelerator.gather_for_metrics(batch.repeat_interleave(4));
      seen[static_cast<size_t>(state.process_index())].push_back(all.numel());
    }
  });
  for (const auto& rows : seen) CHECK(rows == std::vector<int64_t>{16, 12});
}

TEST_CASE("B11 metrics of batches of any length are the dataset, once and in order") {
  struct Buckets {
    [[nodiscard]] int64_t size() const { return 5; }
    [[nodiscard]] std::vector<std::vector<int64_t>> order(int64_t) const {
      return {{0, 1, 2}, {3}, {4, 5}, {6, 7, 8, 9}, {10}};
    }
  };
  struct Outcome {
    std::vector<int64_t> samples{}, words{};
  };
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    Ddp<> accelerator{state};
    std::vector<int64_t> samples(11);
    std::iota(samples.begin(), samples.end(), 0);
    auto loader = accelerator.prepare(accel::data_loader(samples, Buckets(), {}));
    Outcome outcome;
    for (auto& batch : loader) {
      const auto all =
          accelerator.gather_for_metrics(batch.repeat_interleave(2)).slice(0, 0, {}, 2);
      const std::vector<int64_t> mine(batch.template const_data_ptr<int64_t>(),
                                      batch.template const_data_ptr<int64_t>() + batch.numel());
      for (int64_t i = 0; i < all.size(0); ++i)
        outcome.samples.push_back(all[i].template item<int64_t>());
      for (const auto word : accelerator.gather_for_metrics(mine)) outcome.words.push_back(word);
    }
    return outcome;
  });
  const std::vector<int64_t> each{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (const auto& outcome : outcomes) {
    CHECK(outcome.samples == each);
    CHECK(outcome.words == each);
  }
}

TEST_CASE("objects of an epoch are the dataset's, once and in order") {
  std::vector<std::vector<std::string>> seen(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    std::vector<at::Tensor> samples;
    for (int i = 0; i < 5; ++i) samples.push_back(torch::tensor(i));
    auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
    auto& all = seen[static_cast<size_t>(state.process_index())];
    for (auto& batch : loader) {
      std::vector<std::string> names;
      for (int64_t i = 0; i < batch.size(0); ++i)
        names.push_back(fmt::format("sample {}", batch[i].template item<int64_t>()));
      for (auto& name : accelerator.gather_for_metrics(names)) all.push_back(name);
    }
  });
  for (const auto& all : seen)
    CHECK(all ==
          std::vector<std::string>{"sample 0", "sample 1", "sample 2", "sample 3", "sample 4"});
}
