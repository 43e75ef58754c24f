// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Random numbers of two ranks. Run under accel-launch, as processes: LibTorch's default generator is
// one for all threads of a process.
#include "support/launched_ranks.hpp"

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

TEST_CASE(
    "B18 seeded apart after prepare, ranks have dropout of their own and one order of samples") {
  accel::set_seed(7);
  Ddp accelerator(processes());
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < 16; ++i) samples.push_back(torch::tensor(i));
  auto [model, loader] = accelerator.prepare(
      torch::nn::Linear(4, 4), accel::data_loader(samples, {.batch_size = 2, .shuffle = true}));
  const auto weights = accelerator.gather(model->weight.detach().unsqueeze(0));
  CHECK(torch::equal(weights[0], weights[1]));

  accel::set_seed(7, {.process_index = accelerator.process_index()});
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

  accel::set_seed(7);  // as Accelerate's set_seed: one seed, one mask
  const auto shared = masks(accelerator);
  CHECK(torch::equal(shared[0], shared[1]));
}
