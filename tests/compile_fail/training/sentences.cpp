// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a training loop, a loader and a stream are given: the sentences of headers that need LibTorch,
// in one file, since such a file takes the compiler twenty seconds.
// expect: accel: prepare needs a loader that it can share out over the ranks
// expect: accel: prepare needs a module, optimizer or schedule by reference
// expect: accel: accumulate[(]models..., body[)] needs models that prepare returned before its body
// expect: accel: accumulate[(]models..., body[)] needs a body that takes no arguments
// expect: accel: backward[(]loss_sum, count[)] needs a whole number as its count
// expect: accel: convert<Other> needs an Accelerator<...>; use the type that the training goes on
// expect: accel: convert needs what prepare returned; use the accelerator's handles of models
// expect: accel: default_collate needs tensors, numbers, strings, or containers and structs of them
// expect: accel: a struct is collated into a batch of its own type, so its members need the type
// expect: accel: a loader needs a dataset with size[(][)] and get[(]index[)], get_batch[(]indices[)] or
// expect: accel: a sampler needs size[(][)] and order[(]epoch[)] or order[(]epoch, seed[)], which gives
// expect: accel: a collate function of a dataset needs to take a std::vector of samples;
// expect: accel: a collate function of a stream needs to take a std::vector of samples;
// expect: accel: a stream needs next[(][)] that returns a std::optional of a sample that can be
// expect: accel: a slice function needs to take the batch of all ranks and a RowRange, and
// expect: accel: a collective of a nested value needs tensors only
// expect: accel: as_stream needs a dataset that gives samples one by one, and

#include <accel/accelerator.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/data/dataset_stream.hpp>
#include <accel/data/stream_loader.hpp>

#include <boost/hana/define_struct.hpp>

#include <torch/data.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace {

struct Length {
  BOOST_HANA_DEFINE_STRUCT(Length, (at::Tensor, metres));
};
struct Kilometres {
  BOOST_HANA_DEFINE_STRUCT(Kilometres, (float, kilometres));
};
struct Opaque {};

/// Gives whole batches only.
struct Batches {
  [[nodiscard]] std::size_t size() const { return 8; }
  [[nodiscard]] at::Tensor get_batch(c10::ArrayRef<std::size_t>) const { return {}; }
};
struct Backwards {
  [[nodiscard]] std::int64_t size() const { return 2; }
  [[nodiscard]] std::vector<std::int64_t> order(std::int64_t) const { return {1, 0}; }
};
struct Counter {
  int last = 0;
  std::optional<int> next() { return ++last < 8 ? std::optional(last) : std::nullopt; }
};

}  // namespace

void train(torch::nn::Linear net, const at::Tensor& loss) {
  accel::Accelerator<> accelerator;
  auto model = accelerator.prepare(net);
  accelerator.accumulate(model, [&] { accelerator.backward(loss, 3); });
  auto [next, handles] = accelerator.convert<accel::Accelerator<accel::ddp>>(model);
  auto sum = [](std::vector<int> samples) { return samples.size(); };
  const std::vector<int> numbers{1, 2};
  (void)accel::data_loader(numbers, Backwards(), {}, sum);
  (void)accel::default_collate(std::vector<Length>());
  (void)accelerator.gather_for_metrics(Length{loss});
  (void)accelerator.gather(std::vector{std::optional(std::pair(loss, loss))});
  (void)accel::data_loader(accel::as_stream(numbers), {}, sum);
  (void)accel::data_loader(Counter(), {}, sum,
                           [](auto batch, const accel::RowRange&) { return batch; });

#ifdef ACCEL_BAD
  auto none = [] {};
  (void)accelerator.prepare(torch::data::make_data_loader(torch::data::datasets::MNIST(".")));
  (void)accelerator.prepare(net.get());
  accelerator.accumulate(net, [] {});
  accelerator.accumulate(model, [](int micro_batch) { return micro_batch; });
  accelerator.backward(loss, 3.0);
  (void)accelerator.gather_for_metrics(std::tuple(loss, 3));
  (void)accelerator.convert<accel::ddp>(model);
  (void)accelerator.convert<accel::Accelerator<accel::ddp>>(net);
  (void)accel::default_collate(std::vector<Opaque>());
  (void)accel::default_collate(std::vector<Kilometres>());
  (void)accel::DataLoader<Opaque>(nullptr);
  (void)accel::data_loader(std::make_shared<std::vector<int>>(), std::make_shared<Opaque>());
  (void)accel::DataLoader<std::vector<int>, decltype(none)>(nullptr);
  (void)accel::StreamLoader<Counter, decltype(none), accel::DefaultSlice>(nullptr);
  (void)accel::StreamLoader<Opaque, accel::DefaultCollate, accel::DefaultSlice>(nullptr);
  (void)accel::data_loader(Counter(), {}, sum, none);
  (void)accel::DatasetStream<Batches>(Batches());
#endif
}
