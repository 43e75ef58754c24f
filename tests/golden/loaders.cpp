// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The loaders of two processes, against the batches and metrics that Accelerate gives (make_loaders.py
// wrote them). Ranks are threads: nothing here depends on the default generator.
#include "trace.hpp"

#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace {

using accel::PartialState;
using Numbers = std::vector<std::int64_t>;
using Accelerator =
    accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;

/// A stream of 0, 1, ..., end - 1.
struct Counter {
  std::int64_t end = 0, at = 0;
  std::optional<std::int64_t> next() { return at < end ? std::optional(at++) : std::nullopt; }
};

/// What one rank was given.
struct Part {
  std::vector<Numbers> batches;
  Numbers metrics;
  std::int64_t length = -1;
};

Numbers numbers_of(const at::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<std::int64_t>();
  return {first, first + tensor.numel()};
}

template <class Loader>
Part read(Accelerator& accelerator, const Loader& given, bool has_metrics) {
  auto loader = accelerator.prepare(given);
  Part part;
  if constexpr (requires { loader.size(); }) part.length = loader.size();
  for (auto& batch : loader) {
    part.batches.push_back(numbers_of(batch));
    if (!has_metrics) continue;
    const auto all = numbers_of(accelerator.gather_for_metrics(batch));
    part.metrics.insert(part.metrics.end(), all.begin(), all.end());
  }
  return part;
}

std::vector<Part> parts_of(const golden::Json& test, int ranks) {
  const auto samples = test["samples"].get<std::int64_t>();
  const accel::DataLoaderOptions options{.batch_size = test["batch_size"],
                                         .drop_last = test["drop_last"],
                                         .even_batches = test["even_batches"],
                                         .split_batches = test["split_batches"],
                                         .dispatch_batches = test["dispatch_batches"]};
  return accel::test::results_of_ranks<Part>(ranks, [&](const PartialState& state) {
    accel::AcceleratorOptions run_time;
    run_time.allow_uneven_batches = !options.even_batches;
    Accelerator accelerator{state, run_time};
    const bool has_metrics = !test["metrics"].is_null();
    if (test["stream"].get<bool>())
      return read(accelerator, accel::data_loader(Counter{samples}, options), has_metrics);
    Numbers dataset(static_cast<std::size_t>(samples));
    std::iota(dataset.begin(), dataset.end(), 0);
    return read(accelerator, accel::data_loader(dataset, options), has_metrics);
  });
}

}  // namespace

TEST_CASE("golden: the loaders of two processes give the batches and metrics of Accelerate's") {
  const auto file = golden::read_trace("loaders/values");
  REQUIRE(file["cases"].size() > 300);
  for (const auto& test : file["cases"]) {
    INFO(test.dump());
    const auto parts = parts_of(test, 2);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CAPTURE(rank);
      CHECK(parts[rank].batches == test["batches"][rank].get<std::vector<Numbers>>());
      if (!test["metrics"].is_null()) CHECK(parts[rank].metrics == test["metrics"].get<Numbers>());
      if (parts[rank].length >= 0) CHECK(parts[rank].length == std::ssize(parts[rank].batches));
      if (test.contains("length"))
        CHECK(parts[rank].length == test["length"][rank].get<std::int64_t>());
    }
  }
}
