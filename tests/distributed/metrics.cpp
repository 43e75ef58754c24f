// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Metrics over ranks: those of an epoch are the dataset's, once and in order, whatever was repeated to
// make its last round even.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

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
