// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Loaders of streams without communication: what a stream is, epochs, positions, the look-ahead,
// threads, and the ranks that read for themselves.
#include <accel/data/active_loaders.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/data/stream_loader.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <torch/torch.h>

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace {

using accel::data_loader;
using accel::DataLoaderOptions;
using accel::LoaderPlacement;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Numbers = std::vector<std::int64_t>;
using Batches = std::vector<Numbers>;

/// 0, 1, ..., n - 1, or a failure in place of one of them.
struct Counter {
  std::int64_t end = 0;
  std::int64_t fails_at = -1;
  std::int64_t at = 0;

  std::optional<std::int64_t> next() {
    if (at == fails_at) throw std::runtime_error("no signal");
    return at < end ? std::optional(at++) : std::nullopt;
  }
};

/// The same, which cannot be copied, and counts what is asked of it.
struct File {
  explicit File(std::int64_t samples) : end(samples) {}
  File(const File&) = delete;
  void reset() { at = 0; }
  void set_epoch(std::int64_t number) { epoch = number; }
  std::optional<std::int64_t> next() {
    ++reads;
    return at < end ? std::optional(1000 * epoch + at++) : std::nullopt;
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end); }
  std::int64_t end, at = 0, epoch = 0, reads = 0;
};

/// A stream that knows where it stands.
struct Seekable : Counter {
  int* reads = nullptr;
  std::optional<std::int64_t> next() {
    ++*reads;
    return Counter::next();
  }
  [[nodiscard]] nlohmann::json state() const { return {{"at", at}}; }
  void load_state(const nlohmann::json& state) { at = state.at("at"); }
};

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

/// The batches of each rank, which read for themselves.
std::vector<Batches> on_ranks(std::int64_t samples, int ranks, const DataLoaderOptions& options) {
  std::vector<Batches> batches;
  for (int rank = 0; rank < ranks; ++rank)
    batches.push_back(batches_of(data_loader(Counter{samples}, options)
                                     .prepared({.process_index = rank, .num_processes = ranks})));
  return batches;
}

}  // namespace

TEST_CASE("A loader of a stream gives its samples in order, each epoch again") {
  auto loader = data_loader(Counter{5}, {.batch_size = 2});
  for (int epoch = 0; epoch < 2; ++epoch) {
    CHECK(loader.epoch() == epoch);
    CHECK(batches_of(loader) == Batches{{0, 1}, {2, 3}, {4}});
  }
  CHECK(batches_of(data_loader(Counter{5}, {.batch_size = 2, .drop_last = true})) ==
        Batches{{0, 1}, {2, 3}});
  CHECK(batches_of(data_loader(Counter{4}, {.batch_size = 2})) == Batches{{0, 1}, {2, 3}});
  CHECK(batches_of(data_loader(Counter{0}, {.batch_size = 2})).empty());
}

TEST_CASE("A stream with reset() is used itself, is told the epoch, and may know its size") {
  auto file = std::make_shared<File>(3);
  auto loader = data_loader(file, {.batch_size = 2});
  CHECK(loader.size() == 2);
  CHECK(batches_of(loader) == Batches{{0, 1}, {2}});
  CHECK(batches_of(loader) == Batches{{1000, 1001}, {1002}});
  auto first = loader.begin();
  CHECK_THROWS_MATCHES(loader.begin(), accel::Error,
                       MessageMatches(ContainsSubstring("is being read by another loop")));
}

TEST_CASE("Ranges, and functions that make a stream for each epoch, are streams") {
  CHECK(batches_of(data_loader(std::list<std::int64_t>{7, 8, 9}, {.batch_size = 2})) ==
        Batches{{7, 8}, {9}});
  auto of_range = data_loader(std::list<std::int64_t>{7, 8}, {});
  CHECK(of_range.size() == 2);
  CHECK(batches_of(of_range) == batches_of(of_range));

  auto of_stream = data_loader([] { return Counter{2}; }, {.batch_size = 2});
  CHECK(batches_of(of_stream) == Batches{{0, 1}});
  CHECK(batches_of(of_stream) == Batches{{0, 1}});
  auto of_epoch = data_loader(
      [](std::int64_t epoch) { return std::vector<std::int64_t>{epoch, epoch + 1}; }, {});
  CHECK(batches_of(of_epoch) == Batches{{0}, {1}});
  CHECK(batches_of(of_epoch) == Batches{{1}, {2}});
  auto of_file = data_loader([] { return File(2); }, {.batch_size = 2});
  CHECK(batches_of(of_file) == Batches{{0, 1}});

  std::istringstream text("1 2 3");
  auto once = data_loader(std::ranges::istream_view<std::int64_t>(text), {.batch_size = 2});
  CHECK(batches_of(once) == Batches{{1, 2}, {3}});
  CHECK_THROWS_MATCHES(batches_of(once), accel::Error,
                       MessageMatches(ContainsSubstring("can be walked once")));
}

TEST_CASE("A dataset of numbered samples is a stream on demand") {
  CHECK(batches_of(data_loader(accel::as_stream(Numbers{4, 5, 6}), {.batch_size = 2})) ==
        Batches{{4, 5}, {6}});
  CHECK_THROWS_MATCHES(data_loader(Numbers{4, 5, 6}, {.dispatch_batches = true}), accel::Error,
                       MessageMatches(ContainsSubstring("pass accel::as_stream(dataset)")));
}

TEST_CASE("LibTorch's dataset of chunks is a stream of its samples, anew in each epoch") {
  namespace datasets = torch::data::datasets;
  struct Reader : datasets::ChunkDataReader<std::int64_t> {
    using BatchType = ChunkType;
    Numbers read_chunk(size_t chunk) override {
      const auto first = static_cast<std::int64_t>(3 * chunk);
      return {first, first + 1, first + 2};
    }
    size_t chunk_count() override { return 3; }
    void reset() override {}
  };
  using Sampler = torch::data::samplers::SequentialSampler;
  using Chunks = datasets::ChunkDataset<Reader, Sampler, Sampler>;
  const auto chunks = std::make_shared<Chunks>(Reader(), Sampler(0), Sampler(0),
                                               datasets::ChunkDatasetOptions(1, 4));
  auto loader = data_loader(accel::as_stream(chunks, 4), {.batch_size = 5});
  for (int epoch = 0; epoch < 2; ++epoch)
    CHECK(batches_of(loader) == Batches{{0, 1, 2, 3, 4}, {5, 6, 7, 8}});
  CHECK_THROWS_MATCHES(accel::as_stream(chunks, 0), accel::Error,
                       MessageMatches(ContainsSubstring("a batch size of at least 1")));
  CHECK_THROWS_MATCHES(accel::as_stream(std::shared_ptr<Chunks>(), 4), accel::Error,
                       MessageMatches(ContainsSubstring("a null pointer")));
}

TEST_CASE(
    "Ranks that read the whole stream keep their share by rounds: Accelerate's rows 23 to 28") {
  CHECK(on_ranks(10, 2, {.batch_size = 2}) ==
        std::vector<Batches>{{{0, 1}, {4, 5}, {8, 9}}, {{2, 3}, {6, 7}, {0, 1}}});
  CHECK(on_ranks(9, 2, {.batch_size = 2}) ==
        std::vector<Batches>{{{0, 1}, {4, 5}, {8, 0}}, {{2, 3}, {6, 7}, {1, 2}}});
  CHECK(on_ranks(9, 2, {.batch_size = 2, .drop_last = true}) ==
        std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}});
  CHECK(on_ranks(3, 2, {.batch_size = 4}) == std::vector<Batches>{{{0, 1, 2, 0}}, {{1, 2, 0, 1}}});
  CHECK(on_ranks(10, 2, {.batch_size = 4, .split_batches = true}) ==
        std::vector<Batches>{{{0, 1}, {4, 5}, {8, 9}}, {{2, 3}, {6, 7}, {0, 1}}});
  CHECK(on_ranks(1, 3, {.batch_size = 2}) == std::vector<Batches>{{{0, 0}}, {{0, 0}}, {{0, 0}}});
}

TEST_CASE("B16 streams that are shorter than a round") {
  CHECK(on_ranks(1, 2, {.batch_size = 2}) == std::vector<Batches>{{{0, 0}}, {{0, 0}}});
  CHECK(on_ranks(3, 2, {.batch_size = 2}) == std::vector<Batches>{{{0, 1}}, {{2, 0}}});
  CHECK(on_ranks(5, 2, {.batch_size = 2}) ==
        std::vector<Batches>{{{0, 1}, {4, 0}}, {{2, 3}, {1, 2}}});
  CHECK(on_ranks(5, 2, {.batch_size = 2, .drop_last = true}) ==
        std::vector<Batches>{{{0, 1}}, {{2, 3}}});
  CHECK(on_ranks(0, 2, {.batch_size = 2}) == std::vector<Batches>(2));
  CHECK(on_ranks(1, 2, {.batch_size = 2, .drop_last = true}) == std::vector<Batches>(2));
}

TEST_CASE("size() is what iteration yields, where the stream knows it") {
  for (const int samples : {0, 1, 4, 5, 8, 9})
    for (const bool drop_last : {false, true})
      for (int rank = 0; rank < 2; ++rank) {
        const auto loader =
            data_loader(std::make_shared<File>(samples), {.batch_size = 2, .drop_last = drop_last})
                .prepared({.process_index = rank, .num_processes = 2});
        CAPTURE(samples, drop_last, rank);
        const auto size = loader.size();
        CHECK(size == std::ssize(batches_of(loader)));
      }
}

TEST_CASE("The last batch is announced, and the samples of the last round") {
  auto active = std::make_shared<accel::ActiveLoaders>();
  const auto loader = data_loader(Counter{7}, {.batch_size = 2})
                          .prepared({.num_processes = 2, .active_loaders = active});
  std::vector<bool> ends;
  Numbers remainders;
  for ([[maybe_unused]] const auto& batch : loader) {
    ends.push_back(active->end_of_dataloader());
    remainders.push_back(active->remainder());
    CHECK(active->shares().empty() != active->end_of_dataloader());
  }
  CHECK(ends == std::vector<bool>{false, true});
  CHECK(remainders == Numbers{-1, 3});
  CHECK_FALSE(active->in_dataloader());
  for (const bool drop_last : {false, true}) {  // the stream ends where a round does
    const auto full = data_loader(Counter{8}, {.batch_size = 2, .drop_last = drop_last})
                          .prepared({.num_processes = 2, .active_loaders = active});
    ends.clear();
    for ([[maybe_unused]] const auto& batch : full) {
      ends.push_back(active->end_of_dataloader());
      CHECK(active->shares().empty());
    }
    CHECK(ends == std::vector<bool>{false, true});
  }
}

TEST_CASE("A stream goes on where its position was saved, also in rounds of another size") {
  for (const int workers : {0, 1}) {
    auto loader = data_loader(Counter{9}, {.batch_size = 2, .num_workers = workers});
    accel::LoaderState state;
    for (const auto& batch : loader)
      if (values_of(batch).front() == 2) {
        state = loader.state();
        break;
      }
    CHECK(state.batches_yielded == 2);
    CHECK(state.samples == -1);
    auto resumed = data_loader(Counter{9}, {.batch_size = 2, .num_workers = workers});
    resumed.load_state(state);
    CHECK(batches_of(resumed) == Batches{{4, 5}, {6, 7}, {8}});
    CHECK(resumed.epoch() == 1);
    CHECK(batches_of(resumed).size() == 5);
    auto larger = data_loader(Counter{9}, {.batch_size = 4, .num_workers = workers});
    larger.load_state(state);
    CHECK(batches_of(larger) == Batches{{4, 5, 6, 7}, {8}});
    auto odd = data_loader(Counter{9}, {.batch_size = 3});
    CHECK_THROWS_MATCHES(odd.load_state(state), accel::Error,
                         MessageMatches(ContainsSubstring("no whole number of the 3 samples")));
  }
  auto loader = data_loader(Counter{5}, {.batch_size = 2});
  accel::LoaderState last;
  for ([[maybe_unused]] const auto& batch : loader) last = loader.state();
  CHECK(last.samples == 5);
  auto resumed = data_loader(Counter{5}, {.batch_size = 4});  // 6 is no multiple of 4, and the end
  resumed.load_state(last);
  CHECK(batches_of(resumed).empty());
  CHECK(resumed.epoch() == 1);
}

TEST_CASE("A stream that knows its position is not read again") {
  int reads = 0;
  for (const int workers : {0, 1}) {
    const DataLoaderOptions options{.batch_size = 2, .num_workers = workers};
    auto loader = data_loader(Seekable{{9}, &reads}, options);
    accel::LoaderState state;
    auto it = loader.begin();
    ++it;
    state = loader.state();
    CHECK(state.stream == R"({"at":4})");  // not where the look-ahead is
    reads = 0;
    auto resumed = data_loader(Seekable{{9}, &reads}, options);
    resumed.load_state(state);
    {
      const auto done = std::move(it);
    }
    reads = 0;
    CHECK(batches_of(resumed) == Batches{{4, 5}, {6, 7}, {8}});
    CHECK(reads == 6);
  }
  // What fills the last round is at the beginning: it is read again.
  std::vector<Batches> batches;
  for (int rank = 0; rank < 2; ++rank) {
    auto resumed = data_loader(Seekable{{9}, &reads}, {.batch_size = 2})
                       .prepared({.process_index = rank, .num_processes = 2});
    resumed.load_state(
        {.batches_yielded = 1, .samples = -1, .total_batch_size = 4, .stream = R"({"at":4})"});
    batches.push_back(batches_of(resumed));
  }
  CHECK(batches == std::vector<Batches>{{{4, 5}, {8, 0}}, {{6, 7}, {1, 2}}});
}

TEST_CASE("skip_first_batches reads and throws away, once") {
  auto loader = data_loader(Counter{7}, {.batch_size = 2});
  CHECK(batches_of(skip_first_batches(loader, 2)) == Batches{{4, 5}, {6}});
  CHECK(loader.epoch() == 1);
  CHECK(batches_of(loader).size() == 4);
  CHECK(batches_of(skip_first_batches(loader, 9)).empty());
}

TEST_CASE("A failure of the stream comes in its place, and names the sample") {
  for (const int workers : {0, 1}) {
    auto loader = data_loader(Counter{9, 5}, {.batch_size = 2, .num_workers = workers});
    Batches seen;
    const auto run = [&] {
      for (const auto& batch : loader) seen.push_back(values_of(batch));
    };
    CHECK_THROWS_MATCHES(
        run(), accel::Error,
        MessageMatches(ContainsSubstring("reading sample 5 of the stream failed: no signal")));
    CHECK(seen == Batches{{0, 1}, {2, 3}});
  }
  const auto refuse = [](const std::vector<std::int64_t>& samples) -> at::Tensor {
    if (samples[0] == 2) throw std::runtime_error("odd length");
    return torch::tensor(samples);
  };
  auto loader = data_loader(Counter{9}, {.batch_size = 2}, refuse);
  CHECK_THROWS_MATCHES(
      batches_of(loader), accel::Error,
      MessageMatches(ContainsSubstring("the samples 2 to 3 of the stream failed: odd")));
  // Counted from the start of the epoch, up to where the stream ended.
  const auto refuse_last = [](const std::vector<std::int64_t>& samples) -> at::Tensor {
    if (samples[0] == 8) throw std::runtime_error("odd length");
    return torch::tensor(samples);
  };
  for (const int workers : {0, 1}) {
    auto nine = data_loader(Counter{9}, {.batch_size = 2, .num_workers = workers}, refuse_last);
    CHECK_THROWS_MATCHES(
        batches_of(skip_first_batches(nine, 3)), accel::Error,
        MessageMatches(ContainsSubstring("the samples 8 to 8 of the stream failed: odd")));
  }
}

TEST_CASE("Options that a stream cannot have are refused") {
  CHECK_THROWS_MATCHES(data_loader(Counter{9}, {.shuffle = true}), accel::Error,
                       MessageMatches(ContainsSubstring("a stream has an order of its own")));
  CHECK_THROWS_MATCHES(data_loader(Counter{9}, {.num_workers = 2}), accel::Error,
                       MessageMatches(ContainsSubstring("use 0 or 1")));
  CHECK_THROWS_MATCHES(
      data_loader(Counter{9}, {.dispatch_batches = true}).prepared({.num_processes = 2}),
      accel::Error, MessageMatches(ContainsSubstring("needs a communicator")));
}

TEST_CASE("Starting an epoch of a stream draws one number, as Python does") {
  torch::manual_seed(3);
  const auto expected = [] {
    at::empty({}, at::kLong).random_();
    return torch::rand({2});
  }();
  torch::manual_seed(3);
  CHECK(batches_of(data_loader(Counter{3}, {})).size() == 3);
  CHECK(torch::equal(torch::rand({2}), expected));
}
