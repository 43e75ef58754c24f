// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What CPU tensors travel over: chosen, asked for, the same on every rank; and the same training over
// each.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>
#include <accel/comm/shared_buffers.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <catch2/catch_all.hpp>

#include <cstdlib>

using accel::CommunicatorOptions;
using accel::PartialState;
using accel::Transport;
using accel::test::run_ranks;
using Catch::Matchers::ContainsSubstring;

namespace {

using Ddp =
    accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;

CommunicatorOptions over(Transport transport) {
  CommunicatorOptions options;
  options.transport = transport;
  return options;
}

std::string name_of_transport(const CommunicatorOptions& options) {
  std::vector<std::string> names(2);
  run_ranks(
      2,
      [&](const PartialState& state) {
        names[static_cast<std::size_t>(state.process_index())] =
            state.communicator().group()->getBackend(c10::DeviceType::CPU)->getBackendName();
      },
      options);
  return names[0] == names[1] ? names[0] : "different ones";
}

struct Net : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(300, 500));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(500, 40));
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }
};

/// Rank 0's parameters after some steps of a model with buckets of several sizes.
std::vector<at::Tensor> trained(const CommunicatorOptions& options, int size) {
  std::vector<at::Tensor> parameters;
  run_ranks(
      size,
      [&](const PartialState& state) {
        auto generator = at::make_generator<at::CPUGeneratorImpl>(
            static_cast<std::uint64_t>(state.process_index()));
        Ddp accelerator{state};
        const auto net = std::make_shared<Net>();
        {
          const torch::NoGradGuard no_grad;
          auto same = at::make_generator<at::CPUGeneratorImpl>(7);
          for (auto& parameter : net->parameters()) parameter.normal_(0, 0.05, same);
        }
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        for (int step = 0; step < 5; ++step) {
          accelerator.backward(model(at::randn({8, 300}, generator)).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
        if (state.process_index() == 0)
          for (const auto& parameter : net->parameters())
            parameters.push_back(parameter.detach().clone());
      },
      options);
  return parameters;
}

}  // namespace

TEST_CASE("ranks of one host share memory unless Gloo is asked for") {
  CHECK(name_of_transport(over(Transport::automatic)) == "accel_shm");
  CHECK(name_of_transport(over(Transport::shared_memory)) == "accel_shm");
  CHECK(name_of_transport(over(Transport::gloo)) == "gloo");
  ::setenv("ACCEL_TRANSPORT", "gloo", 1);
  CHECK(name_of_transport(over(Transport::automatic)) == "gloo");
  CHECK(name_of_transport(over(Transport::shared_memory)) == "accel_shm");
  ::setenv("ACCEL_TRANSPORT", "tcp", 1);
  CHECK_THROWS_WITH(run_ranks(2, [](const PartialState&) {}),
                    ContainsSubstring("ACCEL_TRANSPORT is 'tcp'"));
  ::unsetenv("ACCEL_TRANSPORT");
}

TEST_CASE("training has the same bits over shared memory and over Gloo with two ranks") {
  const auto shared = trained(over(Transport::shared_memory), 2);
  const auto gloo = trained(over(Transport::gloo), 2);
  REQUIRE(shared.size() == 4);
  for (std::size_t i = 0; i < shared.size(); ++i) CHECK(at::equal(shared[i], gloo[i]));
  const auto three = trained(over(Transport::shared_memory), 3);
  const auto three_gloo = trained(over(Transport::gloo), 3);
  for (std::size_t i = 0; i < three.size(); ++i)
    CHECK(at::allclose(three[i], three_gloo[i], 1e-5, 1e-7));
}

TEST_CASE("large tensors made inside a scope lie in shared memory, and others do not") {
  const auto block_of = [](const at::Tensor& tensor) {
    return tensor.storage().data_ptr().get_context() != tensor.storage().data_ptr().get();
  };
  std::vector<int> inside(2), outside(2), small(2);
  at::Tensor kept;
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<std::size_t>(state.process_index());
    at::Tensor large, little;
    {
      const accel::SharedBuffers scope(state.communicator());
      large = at::ones({100'000});
      little = at::ones({10});
    }
    inside[rank] = block_of(large);
    small[rank] = block_of(little);
    outside[rank] = block_of(at::ones({100'000}));
    if (rank == 0) kept = large;
  });
  CHECK(inside == std::vector<int>{1, 1});
  CHECK(small == std::vector<int>{0, 0});
  CHECK(outside == std::vector<int>{0, 0});
  CHECK(kept.sum().item<float>() == 100'000);  // the group is gone
}
