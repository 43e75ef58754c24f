// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Ways to reduce gradients beyond the plain one: a static graph, in every micro-batch, and with ranks
// whose loops end at different times. PowerSGD is power_sgd.cpp.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::errors_of_ranks;
using accel::test::run_ranks;
using accel::test::Weight;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a static graph reduces parameters that are used twice or never") {
  struct Net : torch::nn::Module {
    torch::nn::Linear twice = register_module("twice", torch::nn::Linear(2, 2));
    torch::nn::Linear never = register_module("never", torch::nn::Linear(2, 2));
    at::Tensor forward(const at::Tensor& x) { return twice(twice(x)); }
  };
  std::vector<std::vector<at::Tensor>> of_ranks(2);
  std::vector<std::shared_ptr<Net>> nets;
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(4);
    nets.push_back(std::make_shared<Net>());
  }
  run_ranks(2, [&](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.ddp.static_graph = true;
    Ddp<accel::accumulate<2>> accelerator{state, options};
    const auto rank = static_cast<size_t>(state.process_index());
    auto net = nets[rank];
    auto model = accelerator.prepare(net);
    for (int window = 0; window < 3; ++window) {
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
      for (int batch = 0; batch < 2; ++batch)
        accelerator.accumulate(model, [&] {
          accelerator.backward(model(torch::full({1, 2}, 1.0f + float(rank))).sum());
        });
      of_ranks[rank].push_back(net->twice->weight.grad().clone());
    }
  });
  auto& reference = nets[2];
  for (float x : {1.0f, 2.0f}) (reference->forward(torch::full({1, 2}, x)).sum() / 2).backward();
  for (const auto& gradients : of_ranks)
    for (const auto& gradient : gradients)
      CHECK(torch::allclose(gradient, reference->twice->weight.grad()));
}

TEST_CASE("sync_each_batch reduces every micro-batch, to the same gradients") {
  std::vector<std::vector<float>> seen(2);
  std::vector<int64_t> reductions(2);
  run_ranks(2, [&](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.sync_each_batch = true;
    Ddp<accel::accumulate<2>> accelerator{state, options};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto rank = static_cast<size_t>(state.process_index());
    for (int batch = 0; batch < 4; ++batch)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        accelerator.backward(model(torch::tensor(float(1 + batch + 4 * state.process_index()))));
        seen[rank].push_back(net->w.grad().item<float>());
        optimizer.step();
        optimizer.zero_grad();
      });
    reductions[rank] = accelerator.reductions();
  });
  // Means over ranks of 1|5, 2|6, 3|7, 4|8, halved.
  for (const auto& values : seen) CHECK(values == std::vector<float>{1.5f, 3.5f, 2.5f, 5.5f});
  CHECK(reductions == std::vector<int64_t>{4, 4});
}

TEST_CASE("joined ranks: those without a batch take part, and all end with the same training") {
  struct NormedImpl : torch::nn::Module {
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(1));
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(1, 1));
    at::Tensor forward(const at::Tensor& x) { return layer(norm(x)); }
  };
  for (const bool counted : {false, true}) {
    for (const std::vector<int>& batches :
         {std::vector<int>{3, 1}, {1, 3}, {0, 2}, {2, 2}, {1, 4, 2}}) {
      const auto size = static_cast<int>(batches.size());
      std::vector<std::vector<at::Tensor>> states(batches.size());
      std::vector<double> rates(batches.size());
      run_ranks(size, [&](const PartialState& state) {
        const auto rank = static_cast<size_t>(state.process_index());
        accel::AcceleratorOptions options;
        options.allow_uneven_batches = true;
        Ddp<> accelerator{state, options};
        auto net = std::make_shared<NormedImpl>();
        torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1));
        auto [model, optimizer, schedule] =
            accelerator.prepare(net, adamw, accel::StepLR(adamw, {.step_size = 1, .gamma = 0.5}));
        const auto train = [&, &model = model, &optimizer = optimizer,
                            &schedule = schedule](int count) {
          for (int batch = 0; batch < count; ++batch)
            accelerator.accumulate(model, [&] {
              const auto x = torch::tensor({{1.0f + float(batch)}, {float(rank)}});
              const auto loss = model(x).square().sum();
              counted ? accelerator.backward(loss, 2) : accelerator.backward(loss);
              optimizer.step();
              schedule.step();
              optimizer.zero_grad();
            });
        };
        accelerator.join_uneven_inputs(model, [&] { train(batches[rank]); });
        train(1);  // and together again
        for (const auto& tensor : net->parameters())
          states[rank].push_back(tensor.detach().clone());
        for (const auto& tensor : net->buffers()) states[rank].push_back(tensor.clone());
        rates[rank] = schedule->get_last_lr().front();
      });
      const auto most = *std::ranges::max_element(batches);
      for (const auto rate : rates) CHECK(rate == Catch::Approx(0.1 * std::pow(0.5, most + 1)));
      for (size_t rank = 1; rank < states.size(); ++rank)
        for (size_t i = 0; i < states[0].size(); ++i) {
          CAPTURE(counted, batches, rank, i);
          CHECK(torch::equal(states[0][i], states[rank][i]));
        }
    }
  }
}

TEST_CASE("joined ranks: the gradients are divided by all ranks") {
  std::vector<float> weights(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer] {
      for (int batch = 0; batch < 1 + state.process_index(); ++batch)
        accelerator.accumulate(model, [&] {
          accelerator.backward(model(torch::tensor(4.0f)));
          optimizer.step();
          optimizer.zero_grad();
        });
    });
    weights[static_cast<size_t>(state.process_index())] = net->w.item<float>();
  });
  CHECK(weights == std::vector<float>{-6, -6});
}
