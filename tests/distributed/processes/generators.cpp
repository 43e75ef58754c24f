// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Random numbers of two ranks. Run under accel-launch, as processes: LibTorch's default generator is
// one for all threads of a process.
#include "support/launched_ranks.hpp"
#include "support/many_layers.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <algorithm>
#include <numeric>

using accel::test::processes;

namespace {

using Ddp =
    accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;

at::Tensor masks(const Ddp& accelerator) {
  return accelerator.gather(torch::dropout(torch::ones({1, 64}), 0.5, /*train=*/true));
}

}  // namespace

TEST_CASE("B18 seeded alike, ranks have dropout of their own and one order of samples") {
  accel::set_seed(7);
  Ddp accelerator(processes());
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < 16; ++i) samples.push_back(torch::tensor(i));
  auto [model, loader] = accelerator.prepare(
      torch::nn::Linear(4, 4), accel::data_loader(samples, {.batch_size = 2, .shuffle = true}));
  const auto weights = accelerator.gather(model->weight.detach().unsqueeze(0));
  CHECK(torch::equal(weights[0], weights[1]));

  const auto own = masks(accelerator);
  CHECK_FALSE(torch::equal(own[0], own[1]));
  if (!accelerator.is_main_process()) (void)torch::rand({3});
  std::vector<int64_t> seen;
  for (auto& batch : loader) {
    const auto all = accelerator.gather(batch);
    seen.insert(seen.end(), all.const_data_ptr<int64_t>(),
                all.const_data_ptr<int64_t>() + all.numel());
  }
  std::vector<int64_t> order;
  for (auto& batch :
       accel::data_loader(samples, {.batch_size = 16, .shuffle = true, .data_seed = uint64_t{7}}))
    order.assign(batch.const_data_ptr<int64_t>(), batch.const_data_ptr<int64_t>() + 16);
  CHECK(seen == order);
  std::ranges::sort(seen);
  std::vector<int64_t> each(16);
  std::iota(each.begin(), each.end(), 0);
  CHECK(seen == each);

  // What was seeded by hand stays so.
  const auto by_hand = [&] {
    accel::set_seed(21, {.process_index = 2 * accelerator.process_index()});
  };
  const torch::nn::Linear another(4, 4);
  by_hand();
  const auto expected = torch::rand({3});
  by_hand();
  (void)accelerator.prepare(another);
  CHECK(torch::equal(torch::rand({3}), expected));
}

TEST_CASE("B18 rank 0 draws as one process does, and others draw as Accelerate's device_specific") {
  accel::set_seed(7);
  const auto first = torch::rand({3}), second = torch::rand({3});
  accel::set_seed(8);
  const auto of_rank_1 = torch::rand({3});
  Ddp accelerator(processes());
  const torch::nn::Linear net(1, 1);
  accel::set_seed(7);
  (void)torch::rand({3});
  (void)accelerator.prepare(net);
  CHECK(torch::equal(torch::rand({3}), accelerator.is_main_process() ? second : of_rank_1));
}

TEST_CASE("seed_per_rank off: one seed, one mask, as Accelerate's set_seed") {
  accel::set_seed(7);
  accel::AcceleratorOptions options;
  options.seed_per_rank = false;
  Ddp accelerator(processes(), options);
  (void)accelerator.prepare(torch::nn::Linear(4, 4));
  const auto shared = masks(accelerator);
  CHECK(torch::equal(shared[0], shared[1]));
}

TEST_CASE("sharded, each rank has its part of what rank 0 would have constructed") {
  const auto& state = processes();
  torch::manual_seed(3);
  accel::test::Many plain;
  const auto expected = accel::test::values_of(*plain);
  const auto check = [&]<class Backend>(Backend) {
    INFO(Backend::name);
    torch::manual_seed(3 + static_cast<uint64_t>(state.process_index()));  // rank 0's counts
    auto net = accel::deferred_init([] { return accel::test::Many(); });
    const auto next = torch::rand({3});
    accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
        accelerator(state);
    auto model = accelerator.prepare(net);
    accelerator.free_memory();
    CHECK(accel::test::same(accel::test::values_of(*net), expected));
    torch::manual_seed(3 + static_cast<uint64_t>(state.process_index()));
    CHECK(at::equal(torch::rand({3}), next));
  };
  check(accel::sharded<accel::zero3>());
  check(accel::sharded<accel::fsdp_zero2>());
  check(accel::sharded<accel::zero2>());
  check(accel::ddp());
}
