// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Training on CUDA devices: what differs from the CPU, and no more. Each case is skipped, with the
// reason, where there are too few devices.
#include <accel/accel.hpp>

#include "support/thread_ranks.hpp"

#include <c10/cuda/CUDAFunctions.h>
#include <catch2/catch_all.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <array>

using namespace accel;

namespace {

void require_devices(int count) {
  const int found = c10::cuda::device_count();
  if (found < count) SKIP("needs CUDA devices: " << count << "; this machine has " << found);
}

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 4));
}

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
};

/// A small network after steps of AdamW on one batch.
template <class Precision, class Placement>
Trained trained(int steps) {
  torch::manual_seed(0);
  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  Accelerator<single, Precision, accumulate<1>, Placement> accelerator;
  const auto x = torch::randn({64, 16}).to(accelerator.device());
  const auto y = torch::randint(4, {64}, torch::kLong).to(accelerator.device());
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  Trained result;
  for (int step = 0; step < steps; ++step)
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      const auto loss = torch::nn::functional::cross_entropy(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      result.losses.push_back(loss.template item<double>());
    });
  result.parameters = net->parameters();
  return result;
}

}  // namespace

TEST_CASE("an NCCL group of one process adds and gathers") {
  require_devices(1);
  auto group =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  std::vector<at::Tensor> values{torch::arange(4, torch::kCUDA)};
  group->allreduce(values)->wait();
  CHECK(torch::equal(values[0].cpu(), torch::arange(4)));
  auto gathered = torch::empty({4}, values[0].options());
  group->_allgather_base(gathered, values[0])->wait();
  CHECK(torch::equal(gathered.cpu(), torch::arange(4)));
}

TEST_CASE("an accelerator on CUDA makes its device the current one, and gathers there") {
  require_devices(1);
  const int last = c10::cuda::device_count() - 1;
  const Accelerator<single, fp32, accumulate<1>, on<cuda>> accelerator({.device_index = last});
  CHECK(accelerator.device() == c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(last)));
  CHECK(c10::cuda::current_device() == last);
  const auto gathered = accelerator.gather(torch::arange(3, torch::kCUDA));
  CHECK(gathered.device() == accelerator.device());
  CHECK(torch::equal(gathered.cpu(), torch::arange(3)));
}

TEST_CASE("fused AdamW on CUDA steps as on the CPU") {
  require_devices(1);
  const auto there = trained<fp32, on<cuda>>(20), here = trained<fp32, on<cpu>>(20);
  for (size_t i = 0; i < here.parameters.size(); ++i) {
    CHECK(there.parameters[i].is_cuda());
    CHECK(torch::allclose(there.parameters[i].cpu(), here.parameters[i], 1e-3, 1e-4));
  }
}

TEST_CASE("fp16 on CUDA computes in half precision and learns with fp32 parameters") {
  require_devices(1);
  const Accelerator<single, fp16, accumulate<1>, on<cuda>> accelerator;
  {
    const auto scope = accelerator.autocast();
    CHECK(torch::mm(torch::ones({2, 2}, torch::kCUDA), torch::ones({2, 2}, torch::kCUDA))
              .scalar_type() == torch::kHalf);
  }
  const auto result = trained<fp16, on<cuda>>(60);
  CHECK(result.losses.back() < 0.5 * result.losses.front());
  for (const auto& parameter : result.parameters) CHECK(parameter.scalar_type() == torch::kFloat);
}

TEST_CASE("activations that wait in host memory leave the gradients as they are") {
  require_devices(1);
  const auto gradients = [](auto&& accelerator) {
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Linear(256, 256), torch::nn::Tanh(),
                              torch::nn::Linear(256, 256));
    auto model = accelerator.prepare(net);
    const auto loss = model(torch::randn({512, 256}).to(accelerator.device())).square().mean();
    if constexpr (requires { accelerator.offload_report(); })
      CHECK(accelerator.offload_report().waiting == 2 * 512 * 256 * 4);
    accelerator.backward(loss);
    return torch::nn::utils::parameters_to_vector(
        {net->parameters()[0].grad(), net->parameters()[2].grad()});
  };
  using Device = on<cuda>;
  using Host = on<cuda, offload<activations>>;
  const auto plain = gradients(Accelerator<single, fp32, accumulate<1>, Device>());
  CHECK(torch::equal(gradients(Accelerator<single, fp32, accumulate<1>, Host>()), plain));
}

TEST_CASE("a loader copies to the device from pinned memory, with and without workers") {
  require_devices(1);
  for (const int workers : {0, 2}) {
    Accelerator<single, fp32, accumulate<1>, on<cuda>> accelerator;
    std::vector<float> data(37);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
    auto loader = accelerator.prepare(
        data_loader(data, {.batch_size = 4, .num_workers = workers, .non_blocking = true}));
    double sum = 0;
    for (auto& batch : loader) {
      CHECK(batch.is_cuda());
      sum += batch.sum().template item<double>();
    }
    CHECK(sum == 36 * 37 / 2);
  }
}

TEST_CASE("ranks on two devices train the same weights over NCCL, and gather") {
  require_devices(2);
  std::array<std::vector<at::Tensor>, 2> weights;
  std::array<at::Tensor, 2> gathered;
  test::run_ranks(
      2,
      [&](const PartialState& processes) {
        const auto rank = static_cast<size_t>(processes.process_index());
        Accelerator<ddp, fp32, accumulate<2>, on<cuda>> accelerator(processes);
        auto net = small_net();
        auto [model, optimizer] =
            accelerator.prepare(net, std::make_shared<torch::optim::SGD>(net->parameters(), 0.1));
        const auto x = torch::full({8, 16}, 1.0 + static_cast<double>(rank), accelerator.device());
        for (int step = 0; step < 4; ++step)
          accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
            accelerator.backward(model(x).pow(2).mean());
            optimizer.step();
            optimizer.zero_grad();
          });
        for (const auto& parameter : net->parameters())
          weights[rank].push_back(parameter.detach().cpu());
        gathered[rank] =
            accelerator.gather(torch::full({2}, static_cast<int64_t>(rank), accelerator.device()))
                .cpu();
        accelerator.wait_for_everyone();
      },
      {}, c10::DeviceType::CUDA);
  for (size_t i = 0; i < weights[0].size(); ++i) CHECK(torch::equal(weights[0][i], weights[1][i]));
  for (const auto& all : gathered)
    CHECK(torch::equal(all, torch::tensor({0, 0, 1, 1}, torch::kLong)));
}
