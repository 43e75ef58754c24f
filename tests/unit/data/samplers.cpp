// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Samplers: the orders that a user gives, sharded like any other.
#include <accel/data/samplers.hpp>
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
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using accel::data_loader;
using accel::PreparedDataLoader;
using accel::SequentialSampler;
using accel::WeightedRandomSampler;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Numbers = std::vector<std::int64_t>;
using Batches = std::vector<Numbers>;

const Numbers ten{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

/// The easy samples first; all of them as epochs go on.
struct Curriculum {
  std::int64_t samples = 2;
  [[nodiscard]] std::int64_t size() const { return samples; }
  [[nodiscard]] Numbers order(std::int64_t epoch) const {
    Numbers order;
    for (std::int64_t i = 0; i < samples; ++i) order.push_back((epoch + i) % 10);
    return order;
  }
};

/// Batches of like length, say, which the epoch rotates.
struct Buckets {
  Batches batches{{0, 1, 2}, {3}, {4, 5}, {6, 7, 8, 9}, {10}};
  [[nodiscard]] std::int64_t size() const { return std::ssize(batches); }
  [[nodiscard]] Batches order(std::int64_t epoch) const {
    auto turned = batches;
    std::ranges::rotate(turned, turned.begin() + epoch);
    return turned;
  }
};

const Numbers eleven{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

template <class Range>
Batches batches_of(const Range& loader) {
  Batches batches;
  for (const at::Tensor& batch : loader)
    batches.emplace_back(batch.const_data_ptr<std::int64_t>(),
                         batch.const_data_ptr<std::int64_t>() + batch.numel());
  return batches;
}

}  // namespace

TEST_CASE("A sampler says which samples an epoch visits, and how many") {
  auto loader = data_loader(ten, Curriculum{3}, {.batch_size = 2});
  CHECK(loader.size() == 2);
  CHECK(batches_of(loader) == Batches{{0, 1}, {2}});
  CHECK(batches_of(loader) == Batches{{1, 2}, {3}});
  CHECK(batches_of(data_loader(ten, SequentialSampler(3), {.batch_size = 3})) ==
        Batches{{0, 1, 2}});
  CHECK(batches_of(data_loader(ten, SequentialSampler(0), {})).empty());
}

TEST_CASE("A sampler that others hold may change between epochs") {
  auto curriculum = std::make_shared<Curriculum>();
  auto loader = data_loader(ten, curriculum, {.batch_size = 4});
  CHECK(loader.size() == 1);
  CHECK(batches_of(loader) == Batches{{0, 1}});
  curriculum->samples = 6;
  CHECK(loader.size() == 2);
  CHECK(batches_of(loader) == Batches{{1, 2, 3, 4}, {5, 6}});
}

TEST_CASE("Ranks take their part of a sampler's order, and repeat its first samples") {
  const auto loader = data_loader(ten, Curriculum{7}, {.batch_size = 2});
  const PreparedDataLoader<Numbers> first(loader, {.process_index = 0, .num_processes = 2});
  const PreparedDataLoader<Numbers> second(loader, {.process_index = 1, .num_processes = 2});
  CHECK(batches_of(first) == Batches{{0, 1}, {4, 5}});
  CHECK(batches_of(second) == Batches{{2, 3}, {6, 0}});
}

TEST_CASE("The weighted sampler draws what PyTorch's does from a generator of the epoch's seed") {
  const std::vector<double> weights{0.1, 0.9, 0.4, 0.7, 3.0, 0.6, 0, 0, 0, 0};
  auto loader =
      data_loader(ten, WeightedRandomSampler(weights, 8), {.batch_size = 8, .data_seed = 42});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    auto generator = at::detail::createCPUGenerator(42 + static_cast<std::uint64_t>(epoch));
    const auto drawn = at::multinomial(torch::tensor(weights, at::kDouble), 8, true, generator);
    CHECK(torch::equal(*loader.begin(), drawn));
    loader.set_epoch(epoch + 1);
  }
  // torch 2.11: list(WeightedRandomSampler([0.1, 0.9, 0.4, 0.7, 3.0, 0.6], 8, True,
  //                                        torch.Generator().manual_seed(42)))
  CHECK(WeightedRandomSampler({0.1, 0.9, 0.4, 0.7, 3.0, 0.6}, 8).order(0, 42) ==
        Numbers{1, 1, 1, 1, 4, 4, 5, 5});
  CHECK(WeightedRandomSampler({0.1, 0.9, 0.4, 0.7, 3.0, 0.6}, 5, false).order(0, 7) ==
        Numbers{1, 4, 3, 5, 0});
  auto all = WeightedRandomSampler({1, 2, 0, 3}, 3, false).order(0, 5);
  std::ranges::sort(all);
  CHECK(all == Numbers{0, 1, 3});
}

TEST_CASE("parity 2.6, rows 21 and 22: a sampler that gives batches, which are dealt out whole") {
  const auto of_rank = [](int rank, bool even, std::int64_t epoch = 0, bool drop_last = false) {
    PreparedDataLoader loader(
        data_loader(eleven, Buckets(), {.drop_last = drop_last, .even_batches = even}),
        {.process_index = rank, .num_processes = 2});
    loader.set_epoch(epoch);
    auto batches = batches_of(loader);
    CHECK(loader.size() == std::ssize(batches));
    return batches;
  };
  CHECK(of_rank(0, true) == Batches{{0, 1, 2}, {4, 5}, {10}});
  CHECK(of_rank(1, true) == Batches{{3}, {6, 7, 8, 9}, {0, 1, 2}});
  CHECK(of_rank(0, false) == Batches{{0, 1, 2}, {4, 5}, {10}});
  CHECK(of_rank(1, false) == Batches{{3}, {6, 7, 8, 9}});
  CHECK(of_rank(0, true, 1) == Batches{{3}, {6, 7, 8, 9}, {0, 1, 2}});
  CHECK(of_rank(0, true, 0, true) == Batches{{0, 1, 2}, {4, 5}});
  CHECK(of_rank(1, true, 0, true) == Batches{{3}, {6, 7, 8, 9}});
  const auto loader = data_loader(eleven, Buckets(), {.num_workers = 2});
  CHECK(loader.size() == 5);
  CHECK(loader.samples() == 5);
  CHECK(batches_of(loader) == Buckets().batches);
  CHECK(batches_of(loader.skip_first_batches(3)) == Batches{{10}, {0, 1, 2}});  // of epoch 1
}

TEST_CASE("A loader of whole batches goes on where its state was saved") {
  auto loader = data_loader(eleven, Buckets(), {});
  auto again = data_loader(eleven, Buckets(), {});
  std::int64_t seen = 0;
  for (const auto& batch : loader) {
    static_cast<void>(batch);
    if (++seen < 2) continue;
    again.load_state(loader.state());
    break;
  }
  CHECK(batches_of(again) == Batches{{4, 5}, {6, 7, 8, 9}, {10}});
  CHECK(again.epoch() == 1);
}

TEST_CASE("A sampler that throws once leaves the position that was loaded") {
  struct Nervous : SequentialSampler {
    explicit Nervous(std::shared_ptr<bool> now) : SequentialSampler(4), throws(std::move(now)) {}
    std::shared_ptr<bool> throws;
    [[nodiscard]] Numbers order(std::int64_t) const {
      if (std::exchange(*throws, false)) throw std::runtime_error("no network");
      return {0, 1, 2, 3};
    }
  };
  const auto throws = std::make_shared<bool>(false);
  auto loader = data_loader(ten, Nervous(throws), {});
  auto again = data_loader(ten, Nervous(throws), {});
  std::int64_t seen = 0;
  for (const auto& batch : loader) {
    static_cast<void>(batch);
    if (++seen == 2) break;
  }
  again.load_state(loader.state());
  *throws = true;
  CHECK_THROWS_MATCHES(batches_of(again), std::runtime_error,
                       MessageMatches(ContainsSubstring("no network")));
  CHECK(batches_of(again) == Batches{{2}, {3}});
}

TEST_CASE("Batches of a sampler that cannot be are refused") {
  const auto refused = [](const Buckets& buckets, accel::DataLoaderOptions options = {}) {
    try {
      static_cast<void>(batches_of(data_loader(eleven, buckets, options)));
    } catch (const accel::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused({{{0, 1}, {}}}), ContainsSubstring("batch 1 of an epoch without samples"));
  CHECK_THAT(refused({{{0, 1}, {11}}}), ContainsSubstring("sample 11 in batch 1"));
  CHECK_THAT(refused({}, {.batch_size = 2}), ContainsSubstring("leave batch_size at 1"));
  CHECK_THAT(refused({}, {.split_batches = true}), ContainsSubstring("split_batches off"));
  CHECK_THAT(refused({}, {.shuffle = true}), ContainsSubstring("shuffle is set"));
}

TEST_CASE("Samplers that cannot be are refused") {
  const auto message = [](const char* text) { return MessageMatches(ContainsSubstring(text)); };
  CHECK_THROWS_MATCHES(WeightedRandomSampler({1, -1}, 2), accel::Error,
                       message("weight 1 of a sampler is -1"));
  CHECK_THROWS_MATCHES(WeightedRandomSampler({1, std::numeric_limits<double>::quiet_NaN()}, 2),
                       accel::Error, message("must be finite"));
  CHECK_THROWS_MATCHES(WeightedRandomSampler({1, 0}, 2, false), accel::Error,
                       message("use fewer samples"));
  CHECK_THROWS_MATCHES(WeightedRandomSampler({0, 0}, 1), accel::Error,
                       message("from 0 with a weight above 0"));
  CHECK_THROWS_MATCHES(data_loader(ten, Curriculum{3}, {.shuffle = true}), accel::Error,
                       message("shuffle is set, and the loader has a sampler"));
  CHECK_THROWS_MATCHES(batches_of(data_loader(ten, SequentialSampler(11), {.batch_size = 11})),
                       accel::Error, message("gave sample 10 at place 10"));
  struct Short : Curriculum {
    [[nodiscard]] Numbers order(std::int64_t) const { return {0}; }
  };
  CHECK_THROWS_MATCHES(batches_of(data_loader(ten, Short{{3}}, {})), accel::Error,
                       message("an order of 1 samples, and its size() is 3"));
  CHECK_THROWS_MATCHES(data_loader(ten, std::shared_ptr<Curriculum>(), {}), accel::Error,
                       message("null pointer to a sampler"));
}
