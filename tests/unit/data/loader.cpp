// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Loaders on one thread: the samples, their order, epochs, flags, positions, devices, and
// LibTorch's own datasets.
#include <accel/data/active_loaders.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/data/prepared_loader.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using accel::ActiveLoaders;
using accel::data_loader;
using accel::DataLoaderOptions;
using accel::LoaderPlacement;
using accel::PreparedDataLoader;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Numbers = std::vector<std::int64_t>;
using Batches = std::vector<Numbers>;

/// Samples 0 .. n-1 that are their own number.
Numbers numbers(std::int64_t count) {
  Numbers values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

Numbers values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(),
          tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

template <class Range>
Batches batches_of(const Range& loader) {
  Batches batches;
  for (const auto& batch : loader) batches.push_back(values_of(batch));
  return batches;
}

template <class Range>
Numbers samples_of(const Range& loader) {
  Numbers samples;
  for (const auto& batch : batches_of(loader))
    samples.insert(samples.end(), batch.begin(), batch.end());
  return samples;
}

using NumberLoader = PreparedDataLoader<Numbers>;

/// The loaders of all ranks over the same samples.
std::vector<NumberLoader> on_ranks(std::int64_t samples, int ranks,
                                   const DataLoaderOptions& options) {
  std::vector<NumberLoader> loaders;
  for (int rank = 0; rank < ranks; ++rank)
    loaders.emplace_back(data_loader(numbers(samples), options),
                         LoaderPlacement{.process_index = rank, .num_processes = ranks});
  return loaders;
}

struct LabelledSet : torch::data::datasets::Dataset<LabelledSet> {
  explicit LabelledSet(std::int64_t count) : count_(count) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto number = static_cast<std::int64_t>(index);
    return {torch::full({1, 2, 2}, static_cast<double>(number)), torch::tensor(number)};
  }
  std::optional<std::size_t> size() const override { return count_; }
  std::int64_t count_;
};

}  // namespace

TEST_CASE("A loader is a range of batches, in any of the ways that one loops") {
  auto loader = data_loader(numbers(5), {.batch_size = 2});
  CHECK(loader.size() == 3);
  CHECK(batches_of(loader) == Batches{{0, 1}, {2, 3}, {4}});
  static_assert(std::input_iterator<decltype(loader.begin())>);
  CHECK(std::ranges::distance(loader) == 3);
  auto it = loader.begin();
  ++it;
  CHECK(it->size(0) == 2);
  it++;
  CHECK(it != loader.end());
  CHECK(it->size(0) == 1);
  it++;
  CHECK(it == loader.end());
}

TEST_CASE("Seedable order: the permutations that Accelerate makes") {
  auto loader = data_loader(numbers(6), {.batch_size = 6, .shuffle = true, .data_seed = 42});
  CHECK(samples_of(loader) == Numbers{0, 3, 2, 4, 1, 5});
  CHECK(samples_of(loader) == Numbers{4, 0, 5, 1, 2, 3});
  loader.set_epoch(0);
  CHECK(samples_of(loader) == Numbers{0, 3, 2, 4, 1, 5});

  auto ranks = on_ranks(8, 2, {.batch_size = 2, .shuffle = true, .data_seed = 42});
  CHECK(batches_of(ranks[0]) == Batches{{6, 3}, {2, 1}});
  CHECK(batches_of(ranks[1]) == Batches{{0, 7}, {4, 5}});
  CHECK(batches_of(ranks[0]) == Batches{{4, 5}, {3, 2}});
  CHECK(batches_of(ranks[1]) == Batches{{7, 1}, {6, 0}});
  ranks[0].set_epoch(0);
  CHECK(batches_of(ranks[0]) == Batches{{6, 3}, {2, 1}});
}

TEST_CASE("The seed of the program is the seed of the order, and later draws are Python's") {
  torch::manual_seed(123);
  const auto loader = data_loader(numbers(37), {.batch_size = 5, .shuffle = true});
  CHECK(samples_of(loader) == Numbers{22, 2,  9,  15, 29, 7,  33, 24, 11, 27, 36, 28, 8,
                                      14, 21, 10, 34, 12, 32, 4,  35, 13, 18, 3,  23, 31,
                                      17, 6,  1,  19, 25, 0,  20, 5,  16, 30, 26});
  CHECK(samples_of(loader) == Numbers{36, 21, 30, 2,  12, 14, 34, 13, 19, 7,  27, 26, 3,
                                      35, 9,  16, 31, 10, 17, 23, 5,  29, 11, 0,  8,  33,
                                      24, 20, 28, 4,  32, 6,  22, 15, 1,  18, 25});
  CHECK(samples_of(loader) == Numbers{10, 30, 12, 16, 11, 8, 19, 36, 24, 33, 0,  3,  18,
                                      2,  5,  35, 34, 28, 6, 22, 20, 4,  27, 29, 26, 31,
                                      21, 1,  14, 7,  23, 9, 32, 25, 15, 17, 13});
  CHECK(torch::rand(1).item<float>() == 0.13657987117767334F);

  torch::manual_seed(123);
  const auto sequential = data_loader(numbers(4), {.batch_size = 2});
  batches_of(sequential);
  batches_of(sequential);
  CHECK(torch::rand(1).item<float>() == 0.07397246360778809F);
}

TEST_CASE("B18 the order does not depend on what a rank has drawn before") {
  torch::manual_seed(5);
  const auto rank0 = samples_of(on_ranks(20, 2, {.batch_size = 2, .shuffle = true})[0]);
  torch::manual_seed(5);
  torch::rand(3);
  const auto rank1 = samples_of(on_ranks(20, 2, {.batch_size = 2, .shuffle = true})[1]);
  std::set<std::int64_t> all(rank0.begin(), rank0.end());
  all.insert(rank1.begin(), rank1.end());
  CHECK(rank0.size() == 10);
  CHECK(rank1.size() == 10);
  CHECK(all.size() == 20);
}

TEST_CASE("The seed that ranks agreed on goes before the program's, and data_seed before both") {
  torch::manual_seed(1);
  const auto with = [](std::optional<std::uint64_t> data_seed,
                       std::optional<std::uint64_t> agreed) {
    const PreparedDataLoader loader(
        data_loader(numbers(6), {.shuffle = true, .data_seed = data_seed}),
        LoaderPlacement{.seed = agreed});
    return samples_of(loader);
  };
  CHECK(with(std::nullopt, 42) == Numbers{0, 3, 2, 4, 1, 5});
  CHECK(with(43, 42) == Numbers{4, 0, 5, 1, 2, 3});
  CHECK(with(std::nullopt, std::nullopt) == with(1, std::nullopt));
}

TEST_CASE("B40 epochs of two ranks: other orders, disjoint parts, all samples") {
  for (const int workers : {0, 2}) {
    torch::manual_seed(3);
    auto ranks = on_ranks(8, 2, {.batch_size = 2, .shuffle = true, .num_workers = workers});
    std::set<Numbers> orders;
    for (int epoch = 0; epoch < 3; ++epoch) {
      auto seen = samples_of(ranks[0]);
      const auto other = samples_of(ranks[1]);
      seen.insert(seen.end(), other.begin(), other.end());
      orders.insert(seen);
      std::sort(seen.begin(), seen.end());
      CHECK(seen == numbers(8));
      CHECK(ranks[0].epoch() == epoch + 1);
    }
    CHECK(orders.size() == 3);

    // Seven samples without duplicates: each is seen once.
    auto uneven = on_ranks(
        7, 2, {.batch_size = 2, .shuffle = true, .even_batches = false, .num_workers = workers});
    auto seen = samples_of(uneven[0]);
    const auto other = samples_of(uneven[1]);
    seen.insert(seen.end(), other.begin(), other.end());
    std::sort(seen.begin(), seen.end());
    CHECK(seen == numbers(7));
  }
}

TEST_CASE("B13 a dataset smaller than the world, and an empty one") {
  for (const bool shuffle : {false, true}) {
    for (auto& loader : on_ranks(1, 4, {.batch_size = 1, .shuffle = shuffle}))
      CHECK(batches_of(loader) == Batches{{0}});
    const auto active = std::make_shared<ActiveLoaders>();
    for (const int workers : {0, 2}) {
      PreparedDataLoader loader(
          data_loader(Numbers{}, {.batch_size = 2, .shuffle = shuffle, .num_workers = workers}),
          LoaderPlacement{.num_processes = 3, .active_loaders = active});
      CHECK(loader.size() == 0);
      CHECK(batches_of(loader).empty());
      CHECK(loader.epoch() == 1);
      CHECK_FALSE(active->in_dataloader());
    }
  }
}

TEST_CASE("B15 split batches that cannot be split are refused when the loader is placed") {
  const auto loader = data_loader(numbers(100), {.batch_size = 8, .split_batches = true});
  CHECK(loader.size() == 13);
  CHECK_THROWS_MATCHES(PreparedDataLoader(loader, LoaderPlacement{.num_processes = 3}),
                       accel::Error,
                       MessageMatches(ContainsSubstring("8") && ContainsSubstring("3")));
}

TEST_CASE("The last batch is announced while it is processed") {
  const auto active = std::make_shared<ActiveLoaders>();
  const PreparedDataLoader loader(data_loader(numbers(7), {.batch_size = 2}),
                                  LoaderPlacement{.num_processes = 2, .active_loaders = active});
  std::vector<bool> ends;
  for (const auto& batch : loader) {
    (void)batch;
    CHECK(active->in_dataloader());
    CHECK(active->remainder() == 3);
    ends.push_back(active->end_of_dataloader());
  }
  CHECK(ends == std::vector<bool>{false, true});
  CHECK_FALSE(active->in_dataloader());
  CHECK(active->remainder() == -1);
}

TEST_CASE("B04 validation inside training leaves the training loader's flags alone") {
  const auto active = std::make_shared<ActiveLoaders>();
  const LoaderPlacement place{.active_loaders = active};
  const PreparedDataLoader train(data_loader(numbers(5)), place);
  const PreparedDataLoader validation(data_loader(numbers(3)), place);
  for (const int left_after : {3, 1}) {
    std::vector<bool> ends;
    int step = 0;
    for (const auto& batch : train) {
      (void)batch;
      if (step++ == 1) {
        int seen = 0;
        for (const auto& other : validation) {
          (void)other;
          CHECK(active->end_of_dataloader() == (seen == 2));
          if (++seen == left_after) break;
        }
      }
      ends.push_back(active->end_of_dataloader());
    }
    CHECK(ends == std::vector<bool>{false, false, false, false, true});
    CHECK_FALSE(active->in_dataloader());
  }
}

TEST_CASE("A loop that is left early unregisters its loader and begins its epoch again") {
  const auto active = std::make_shared<ActiveLoaders>();
  const PreparedDataLoader loader(data_loader(numbers(9), {.shuffle = true, .data_seed = 1}),
                                  LoaderPlacement{.active_loaders = active});
  Numbers seen;
  for (const auto& batch : loader) {
    seen.push_back(batch.item<std::int64_t>());
    if (seen.size() == 3) break;
  }
  CHECK_FALSE(active->in_dataloader());
  CHECK(loader.epoch() == 0);
  try {
    for (const auto& batch : loader) throw std::runtime_error(batch.toString());
    FAIL();
  } catch (const std::runtime_error&) {
    CHECK_FALSE(active->in_dataloader());
  }
  const auto whole = samples_of(loader);
  CHECK(whole.size() == 9);
  CHECK(std::equal(seen.begin(), seen.end(), whole.begin()));
}

TEST_CASE("A position goes on with the very samples and the very random draws") {
  const DataLoaderOptions options{.batch_size = 3, .shuffle = true};
  const auto epochs = [](NumberLoader& loader, std::int64_t last,
                         std::vector<std::pair<Numbers, float>>& trace) {
    while (loader.epoch() < last)
      for (const auto& batch : loader)
        trace.emplace_back(values_of(batch), torch::rand(1).item<float>());
  };
  torch::manual_seed(11);
  std::vector<std::pair<Numbers, float>> straight;
  NumberLoader loader(data_loader(numbers(20), options), {});
  epochs(loader, 3, straight);
  REQUIRE(straight.size() == 21);

  for (const std::size_t stop :
       {1, 7, 10, 13, 14}) {  // 7 and 14: after the last batch of an epoch, inside the loop
    torch::manual_seed(11);
    std::vector<std::pair<Numbers, float>> trace;
    accel::LoaderState state;
    at::Tensor random;
    {
      NumberLoader first(data_loader(numbers(20), options), {});
      while (!random.defined())
        for (const auto& batch : first) {
          trace.emplace_back(values_of(batch), torch::rand(1).item<float>());
          if (trace.size() == stop) {
            state = first.state();
            random = at::detail::getDefaultCPUGenerator().get_state();
            break;
          }
        }
    }
    torch::manual_seed(99);
    NumberLoader second(data_loader(numbers(20), options), {});
    second.load_state(state);
    auto generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(random);
    epochs(second, 3, trace);
    CHECK(trace == straight);
  }
}

TEST_CASE("A resumed epoch may be named by the loop, and its whole length stays") {
  NumberLoader loader(data_loader(numbers(10), {.batch_size = 2}), {});
  loader.load_state(
      {.epoch = 2, .batches_yielded = 3, .seed = 0, .samples = 10, .total_batch_size = 2});
  loader.set_epoch(2);
  CHECK(loader.size() == 5);
  CHECK(batches_of(loader) == Batches{{6, 7}, {8, 9}});
  CHECK(batches_of(loader).size() == 5);
}

TEST_CASE(
    "Copies of a loader share its position, and an accelerator can keep it without its type") {
  NumberLoader loader(data_loader(numbers(10), {.batch_size = 2}), {});
  const auto copy = loader;
  const std::shared_ptr<accel::LoaderCursor> cursor = loader.cursor();
  batches_of(loader);
  CHECK(copy.epoch() == 1);
  CHECK(cursor->state() == copy.state());
  const auto mine = data_loader(numbers(10));
  const PreparedDataLoader prepared(mine, LoaderPlacement{});
  batches_of(prepared);
  CHECK(mine.epoch() == 0);
}

TEST_CASE("Skipping batches is for one epoch, and keeps everything else") {
  auto ranks = on_ranks(11, 2, {.batch_size = 2, .drop_last = true});
  const auto whole = batches_of(ranks[1]);
  ranks[1].set_epoch(0);
  const auto rest = accel::skip_first_batches(ranks[1], 1);
  CHECK(rest.size() == 1);
  CHECK(batches_of(rest) == Batches(whole.begin() + 1, whole.end()));
  CHECK(ranks[1].epoch() == 1);
  CHECK(batches_of(ranks[1]) == whole);

  auto loader = data_loader(numbers(10), {.batch_size = 2});
  CHECK(batches_of(loader.skip_first_batches(2)) == Batches{{4, 5}, {6, 7}, {8, 9}});
  CHECK(batches_of(loader.skip_first_batches(7)).empty());
  CHECK(loader.skip_first_batches(7).size() == 0);
  // A program that skips what it has seen may have resumed the loader there already.
  const accel::LoaderState two{
      .epoch = 0, .batches_yielded = 2, .samples = 10, .total_batch_size = 2};
  loader.load_state(two);
  CHECK(batches_of(loader.skip_first_batches(2)) == Batches{{4, 5}, {6, 7}, {8, 9}});
  loader.load_state(two);
  CHECK(batches_of(loader.skip_first_batches(4)) == Batches{{8, 9}});
  CHECK_THROWS_AS(loader.skip_first_batches(-1), accel::Error);
}

TEST_CASE("Batches are moved to the device, whatever their structure") {
  // "meta" is a device that every build has.
  const LoaderPlacement place{.device = c10::Device(c10::kMeta)};
  const std::vector<std::pair<at::Tensor, std::map<std::string, int>>> samples{
      {torch::ones(2), {{"label", 3}}}};
  const PreparedDataLoader nested(data_loader(samples), place);
  for (const auto& [data, named] : nested) {
    CHECK(data.is_meta());
    CHECK(named.at("label").is_meta());
  }
  const PreparedDataLoader examples(data_loader(LabelledSet(3)), place);
  for (const auto& batch : examples) {
    CHECK(batch.data.is_meta());
    CHECK(batch.target.is_meta());
  }
  const PreparedDataLoader only_data(
      data_loader(torch::data::datasets::TensorDataset(torch::ones({3, 2}))
                      .map(torch::data::transforms::Stack<torch::data::TensorExample>())),
      place);
  for (const auto& batch : only_data) CHECK(batch.data.is_meta());
}

TEST_CASE("LibTorch's datasets and transforms plug in unchanged") {
  auto loader = data_loader(LabelledSet(5), {.batch_size = 2});
  std::vector<std::int64_t> sizes;
  for (const auto& batch : loader) {
    CHECK(batch.data.sizes().slice(1) == at::IntArrayRef({1, 2, 2}));
    CHECK(at::equal(batch.data.select(1, 0).select(1, 0).select(1, 0).to(torch::kLong),
                    batch.target));
    sizes.push_back(batch.data.size(0));
  }
  CHECK(sizes == std::vector<std::int64_t>{2, 2, 1});

  using torch::data::transforms::Normalize;
  using torch::data::transforms::Stack;
  auto chained = data_loader(LabelledSet(4).map(Normalize<>(1.0, 2.0)).map(Stack<>()),
                             {.batch_size = 4, .shuffle = true, .data_seed = 1});
  for (const auto& batch : chained) {
    CHECK(batch.data.sizes() == at::IntArrayRef({4, 1, 2, 2}));
    CHECK(at::equal(batch.data.select(1, 0).select(1, 0).select(1, 0),
                    (batch.target.to(torch::kFloat) - 1.0) / 2.0));
  }

  const auto rows = torch::arange(6).view({3, 2});
  for (const auto& batch :
       data_loader(torch::data::datasets::TensorDataset(rows), {.batch_size = 3}))
    CHECK(at::equal(batch, rows));
}

TEST_CASE("A collate function of the user wins") {
  const auto sums = [](std::vector<std::int64_t> samples) {
    return std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
  };
  std::vector<std::int64_t> seen;
  for (const auto& sum : data_loader(numbers(5), {.batch_size = 2}, sums)) seen.push_back(sum);
  CHECK(seen == Numbers{1, 5, 4});

  // Also where the dataset makes batches itself.
  const auto halves = [](torch::data::Example<> batch) { return batch.data / 2; };
  for (const auto& half : data_loader(LabelledSet(2).map(torch::data::transforms::Stack<>()),
                                      {.batch_size = 2}, halves))
    CHECK(half.sum().item<float>() == 2.0F);
  for (const auto& samples : data_loader(numbers(2), {.batch_size = 2}, accel::no_collate))
    CHECK(samples == numbers(2));
}

TEST_CASE("A dataset that others hold is not copied, and may grow between epochs") {
  const auto shared = std::make_shared<Numbers>(numbers(3));
  const auto loader = data_loader(shared);
  CHECK(&loader.dataset() == shared.get());
  CHECK(samples_of(loader) == numbers(3));
  shared->push_back(3);
  CHECK(loader.size() == 4);
  CHECK(samples_of(loader) == numbers(4));
}

TEST_CASE("What is wrong with a loader is said by name") {
  const auto refused = [](const DataLoaderOptions& options, const char* text) {
    CHECK_THROWS_MATCHES(data_loader(numbers(4), options), accel::Error,
                         MessageMatches(ContainsSubstring(text)));
  };
  refused({.batch_size = 0}, "batch_size is 0");
  refused({.num_workers = -1}, "num_workers is -1");
  refused({.prefetch_factor = 0}, "prefetch_factor is 0");
  CHECK_THROWS_AS(data_loader(std::shared_ptr<Numbers>()), accel::Error);

  const std::vector<at::Tensor> ragged{torch::ones(2), torch::ones(2), torch::ones(3)};
  const auto active = std::make_shared<ActiveLoaders>();
  const PreparedDataLoader loader(data_loader(ragged, {.batch_size = 3}),
                                  LoaderPlacement{.active_loaders = active});
  CHECK_THROWS_MATCHES(batches_of(loader), accel::Error,
                       MessageMatches(ContainsSubstring("samples [0, 1, 2]") &&
                                      ContainsSubstring("[3] for sample 2")));
  CHECK_FALSE(active->in_dataloader());
}

TEST_CASE("Concepts: what is a dataset") {
  struct Stream : torch::data::datasets::StreamDataset<Stream, std::vector<int>> {};
  struct NoSize {
    int get(std::size_t) const;
  };
  struct Ending {
    std::size_t size() const;
    std::optional<int> get_batch(c10::ArrayRef<std::size_t>);
  };
  struct Least {
    std::size_t size() const;
    int get(std::size_t);
  };
  static_assert(accel::MapDataset<Least>);
  static_assert(accel::MapDataset<std::vector<std::string>>);
  static_assert(accel::MapDataset<LabelledSet>);
  static_assert(accel::MapDataset<torch::data::datasets::MNIST>);
  static_assert(!accel::MapDataset<NoSize>);
  static_assert(!accel::MapDataset<Stream>);
  static_assert(!accel::MapDataset<Ending>);
  static_assert(!accel::MapDataset<std::set<int>>);
  static_assert(!accel::MapDataset<int>);
  const auto takes_numbers = [](Numbers samples) { return samples; };
  const auto takes_text = [](std::string samples) { return samples; };
  static_assert(accel::CollateFor<decltype(takes_numbers), Numbers>);
  static_assert(!accel::CollateFor<decltype(takes_text), Numbers>);
  SUCCEED("they compile");
}
