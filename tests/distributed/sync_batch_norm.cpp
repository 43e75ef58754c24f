// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Batch normalization over all ranks: the numbers of one process with the whole batch.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <numeric>

using accel::PartialState;
using accel::test::run_ranks;

namespace {

template <class Precision = accel::fp32>
using Ddp = accel::Accelerator<accel::ddp, Precision, accel::accumulate<1>, accel::on<accel::cpu>>;

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv =
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::BatchNorm1d plain = register_module(
      "plain", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(false)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 3));
  at::Tensor forward(const at::Tensor& x) {
    return head(plain(torch::relu(norm(conv(x))).mean({2, 3})));
  }
};
TORCH_MODULE(Net);

/// Parameters' gradients, then buffers, after some steps.
struct Outcome {
  std::vector<at::Tensor> tensors;
  at::Tensor evaluated;
};

struct Data {
  at::Tensor x, y;
  Data() {
    auto generator = at::detail::createCPUGenerator(3);
    x = torch::randn({8, 2, 5, 5}, generator) * 3 + 1;
    y = torch::randn({8, 3}, generator);
  }
};

Outcome outcome_of(Net& net, const at::Tensor& x) {
  Outcome outcome;
  for (const auto& parameter : net->parameters())
    outcome.tensors.push_back(parameter.grad().clone());
  for (const auto& buffer : net->buffers()) outcome.tensors.push_back(buffer.clone());
  net->eval();
  const torch::NoGradGuard no_grad;
  outcome.evaluated = net->forward(x);
  return outcome;
}

/// Trains by one process with the whole batch.
Outcome alone(const Data& data) {
  torch::manual_seed(1);
  Net net;
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    torch::mse_loss(net->forward(data.x), data.y, torch::Reduction::Sum).div(8).backward();
  }
  return outcome_of(net, data.x);
}

void compare(const Outcome& a, const Outcome& b, double tolerance) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    CAPTURE(i);
    CHECK(torch::allclose(a.tensors[i], b.tensors[i], tolerance, tolerance));
  }
  CHECK(torch::allclose(a.evaluated, b.evaluated, tolerance, tolerance));
}

}  // namespace

TEST_CASE("SyncBatchNorm gives the gradients and statistics of the whole batch") {
  const Data data;
  const auto expected = alone(data);
  // Even shares, uneven ones, and a rank without any row.
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{4, 4}, {2, 6}, {3, 2, 3}, {8, 0}}) {
    const auto size = static_cast<int>(shares.size());
    std::vector<Outcome> outcomes(shares.size());
    torch::manual_seed(1);
    std::vector<Net> nets;
    for (int rank = 0; rank < size; ++rank) {
      torch::manual_seed(1);
      nets.emplace_back();
    }
    run_ranks(size, [&](const PartialState& state) {
      const auto rank = static_cast<size_t>(state.process_index());
      accel::AcceleratorOptions options;
      options.ddp.sync_batch_norm = true;
      Ddp<> accelerator{state, options};
      auto& net = nets[rank];
      auto model = accelerator.prepare(net);
      const int64_t begin = std::accumulate(
          shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(rank), int64_t{0});
      const auto x = data.x.narrow(0, begin, shares[rank]),
                 y = data.y.narrow(0, begin, shares[rank]);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        // The mean over ranks of sums: times the ranks over the whole batch it is the mean.
        accelerator.backward(torch::mse_loss(model(x), y, torch::Reduction::Sum) * size / 8);
      }
      outcomes[rank] = outcome_of(net, data.x);
    });
    for (const auto& outcome : outcomes) compare(outcome, expected, 1e-4);
  }
}

TEST_CASE("SyncBatchNorm: without the option ranks normalize on their own") {
  const Data data;
  const auto expected = alone(data);
  std::vector<bool> same(2);
  std::vector<Net> nets(2, Net(nullptr));
  for (auto& net : nets) {
    torch::manual_seed(1);
    net = Net();
  }
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Ddp<> accelerator{state};
    auto model = accelerator.prepare(nets[rank]);
    const auto x = data.x.narrow(0, state.process_index() * 4, 4);
    accelerator.backward(model(x).sum());
    same[rank] = torch::allclose(nets[rank]->norm->running_mean,
                                 expected.tensors[nets[rank]->parameters().size()]);
  });
  CHECK_FALSE(same[0]);
}

TEST_CASE("SyncBatchNorm reaches members of the module, and half precision") {
  std::vector<at::Tensor> outputs(2);
  run_ranks(2, [&](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.ddp.sync_batch_norm = true;
    Ddp<accel::bf16> accelerator{state, options};
    torch::nn::BatchNorm1d norm(1);
    auto model = accelerator.prepare(norm);
    const auto x = torch::full({2, 1}, float(state.process_index()));
    outputs[static_cast<size_t>(state.process_index())] = model->forward(x).detach();
  });
  // Mean 0.5 and variance 0.25 over both ranks; alone a rank of equal rows would give 0.
  CHECK(torch::allclose(outputs[0].to(torch::kFloat), torch::full({2, 1}, -1.0f), 1e-2, 1e-2));
  CHECK(torch::allclose(outputs[1].to(torch::kFloat), torch::full({2, 1}, 1.0f), 1e-2, 1e-2));
}

TEST_CASE("SyncBatchNorm leaves instance normalization alone: each sample by itself") {
  const auto of_rank = [](int rank) {
    return torch::arange(8, torch::kFloat).reshape({2, 1, 4}).square() * (1 + rank);
  };
  std::vector<at::Tensor> outputs(2);
  run_ranks(2, [&](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.ddp.sync_batch_norm = true;
    Ddp<> accelerator{state, options};
    auto model = accelerator.prepare(
        torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(1).affine(true)));
    outputs[static_cast<size_t>(state.process_index())] =
        model(of_rank(state.process_index())).detach();
  });
  for (const int rank : {0, 1})
    CHECK(torch::allclose(
        outputs[static_cast<size_t>(rank)],
        torch::instance_norm(of_rank(rank), {}, {}, {}, {}, true, 0.1, 1e-5, false), 1e-4, 1e-5));
}

TEST_CASE("SyncBatchNorm does not communicate in evaluation, without running statistics either") {
  std::vector<at::Tensor> outputs(2);
  run_ranks(2, [&](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.ddp.sync_batch_norm = true;
    Ddp<> accelerator{state, options};
    auto model = accelerator.prepare(
        torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(1).track_running_stats(false)));
    const auto rank = state.process_index();
    // Each rank by itself in evaluation, both together in training: 0.5 and 0.25 of all rows.
    model->eval();
    if (rank == 0) (void)model(torch::tensor({{1.f}, {3.f}}));
    model->train();
    outputs[static_cast<size_t>(rank)] = model(torch::full({2, 1}, float(rank))).detach();
  });
  CHECK(torch::allclose(outputs[0], torch::full({2, 1}, -1.0f), 1e-3, 1e-3));
  CHECK(torch::allclose(outputs[1], torch::full({2, 1}, 1.0f), 1e-3, 1e-3));
}
