// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks whose loops end at different times: what the gradients are, with windows, counts, buffers and
// a loss scale; and what does not go with it.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <chrono>
#include <list>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using accel::test::run_ranks;
using accel::test::Weight;
using Catch::Matchers::ContainsSubstring;

namespace {

/// The gradients of each rank's micro-batches.
using Gradients = std::vector<std::list<float>>;

enum class Style { plain, counted, cleared_at_head };

/// What each rank's weight is after a joined epoch over its gradients, with a learning rate of 1.
template <class Accumulation, class Precision = accel::fp32>
std::vector<float> joined(const Gradients& gradients, Style style = Style::plain,
                          accel::AcceleratorOptions options = {}) {
  options.allow_uneven_batches = true;
  options.communicator.collective_timeout = std::chrono::seconds(20);
  std::vector<float> weights(gradients.size());
  const auto body = [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    accel::Accelerator<accel::ddp, Precision, Accumulation, accel::on<accel::cpu>> accelerator{
        state, options};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer, loader] = accelerator.prepare(
        net, sgd,
        accel::data_loader(gradients[rank], {.even_batches = false, .already_sharded = true}));
    accelerator.join_uneven_inputs(
        model, [&, &model = model, &optimizer = optimizer, &loader = loader] {
          for (auto& batch : loader)
            accelerator.accumulate(model, [&] {
              if (style == Style::cleared_at_head && accelerator.sync_gradients())
                optimizer.zero_grad();
              const auto loss = model(batch.to(torch::kFloat)).sum();
              if (style == Style::counted)
                accelerator.backward(loss, 1);
              else
                accelerator.backward(loss);
              optimizer.step();
              if (style != Style::cleared_at_head) optimizer.zero_grad();
            });
        });
    weights[rank] = net->w.template item<float>();
  };
  run_ranks(static_cast<int>(gradients.size()), body, options.communicator);
  return weights;
}

using Weights = std::vector<float>;

}  // namespace

TEST_CASE("B25 joined ranks: the mean is over all ranks, also those that have no batch left") {
  using One = accel::accumulate<1>;
  const Gradients uneven{{1, 2, 6}, {3, 4}};
  CHECK(joined<One>(uneven) == Weights{-8, -8});  // 2, 3 and 3
  // The gradients that a rank's last step leaves behind are not of the windows that follow.
  CHECK(joined<One>(uneven, Style::cleared_at_head) == Weights{-8, -8});
  // By items: 4 / 2, 6 / 2 and 6 / 1.
  CHECK(joined<One>(uneven, Style::counted) == Weights{-11, -11});
  CHECK(joined<One>({{}, {5}}) == Weights{-2.5f, -2.5f});
}

TEST_CASE("B25 uneven ranks that do not join: every rank is told, soon, what was waited for") {
  accel::CommunicatorOptions patient;
  patient.collective_timeout = std::chrono::seconds(2);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_of_ranks(
      2,
      [](const PartialState& state) {
        accel::AcceleratorOptions options;
        options.allow_uneven_batches = true;
        Ddp<> accelerator{state, options};
        auto net = std::make_shared<Weight>();
        torch::optim::SGD sgd(net->parameters(), 1.0);
        const std::list<float> gradients(state.is_main_process() ? 3 : 2, 1.0f);
        auto [model, optimizer, loader] = accelerator.prepare(
            net, sgd,
            accel::data_loader(gradients, {.even_batches = false, .already_sharded = true}));
        for (auto& batch : loader)
          accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
            accelerator.backward(model(batch.to(torch::kFloat)).sum());
            optimizer.step();
            optimizer.zero_grad();
          });
        accelerator.wait_for_everyone();
      },
      patient);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  for (const auto& error : errors) {
    INFO(error);
    CHECK_THAT(error, ContainsSubstring("accel: rank"));
  }
}

TEMPLATE_TEST_CASE("joined ranks: a window that ends early on a rank is the mean over what it saw",
                   "", accel::accumulate<2>, accel::accumulate<accel::dynamic>) {
  accel::AcceleratorOptions options;
  options.gradient_accumulation_steps = 2;
  const auto plain = [&](const Gradients& gradients) {
    return joined<TestType>(gradients, Style::plain, options);
  };
  CHECK(plain({{1, 3}, {4}}) == Weights{-3, -3});  // 2 and 4
  CHECK(plain({{4}, {1, 3}}) == Weights{-3, -3});
  CHECK(plain({{1, 3, 5}, {4}}) == Weights{-5.5f, -5.5f});  // and 5, over two ranks
  CHECK(plain({{1, 3, 5}, {}}) == Weights{-3.5f, -3.5f});
  const auto counted = joined<TestType>({{1, 3}, {5}}, Style::counted, options);
  CHECK(counted == Weights{-3, -3});
  options.grad_scaler.init_scale = 1024;
  CHECK(joined<TestType, accel::fp16>({{1, 3}, {4}}, Style::plain, options) == Weights{-3, -3});
}

TEST_CASE("joined ranks: of three micro-batches the earlier ones count once") {
  CHECK(joined<accel::accumulate<4>>({{1, 2, 6}, {1, 1, 1, 1}}) == Weights{-2, -2});
}

TEST_CASE("joined ranks: debug mode lets those without a batch make their calls from elsewhere") {
  accel::AcceleratorOptions options;
  options.communicator.debug = true;
  CHECK(joined<accel::accumulate<1>>({{1, 2}, {3}}, Style::counted, options) == Weights{-4, -4});
  // A rank whose loop is over does not step, so that its weights are others for a while.
  CHECK(joined<accel::accumulate<1>>({{1, 2, 6, 4, 5}, {3, 4}}, Style::plain, options) ==
        Weights{-12.5f, -12.5f});
}

TEST_CASE("joined ranks: several backward passes a window, and buffers that are shared once") {
  struct NormedImpl : torch::nn::Module {
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(1));
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(1, 1));
    at::Tensor forward(const at::Tensor& x) { return layer(norm(x)); }
  };
  accel::CommunicatorOptions soon;
  soon.collective_timeout = std::chrono::seconds(10);
  const std::vector<int> batches{3, 1};
  std::vector<std::vector<at::Tensor>> states(2);
  run_ranks(
      2,
      [&](const PartialState& state) {
        const auto rank = static_cast<size_t>(state.process_index());
        Ddp<> accelerator{state};
        auto net = std::make_shared<NormedImpl>();
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer] {
          for (int batch = 0; batch < batches[rank]; ++batch)
            accelerator.accumulate(model, [&] {
              const auto x = torch::tensor({{1.0f + float(batch)}, {float(rank)}});
              accelerator.backward(model(x).square().sum());
              accelerator.backward(model(x).abs().sum());
              optimizer.step();
              optimizer.zero_grad();
            });
        });
        for (const auto& tensor : net->parameters())
          states[rank].push_back(tensor.detach().clone());
        for (const auto& tensor : net->buffers()) states[rank].push_back(tensor.clone());
      },
      soon);
  REQUIRE(states[0].size() == states[1].size());
  for (size_t i = 0; i < states[0].size(); ++i) {
    CAPTURE(i);
    CHECK(torch::equal(states[0][i], states[1][i]));
  }
}

TEST_CASE("joined ranks: what a rank without a batch cannot take part in is refused on all") {
  const auto refused = [](const accel::AcceleratorOptions& options) {
    return errors_of_ranks(2, [&](const PartialState& state) {
      Ddp<accel::accumulate<2>> accelerator{state, options};
      auto model = accelerator.prepare(std::make_shared<Weight>());
      accelerator.join_uneven_inputs(model, [] {});
    });
  };
  accel::AcceleratorOptions each_batch, graph, norm;
  each_batch.sync_each_batch = true;
  graph.ddp.static_graph = true;
  norm.ddp.sync_batch_norm = true;
  for (const auto& error : refused(each_batch))
    CHECK_THAT(error, ContainsSubstring("does not go with sync_each_batch"));
  for (const auto& error : refused(graph))
    CHECK_THAT(error, ContainsSubstring("does not go with ddp.static_graph"));
  for (const auto& error : refused(norm))
    CHECK_THAT(error, ContainsSubstring("does not go with ddp.sync_batch_norm"));
}

TEST_CASE("joined ranks that do different things are told so") {
  const auto errors = errors_of_ranks(3, [](const PartialState& state) {
    Ddp<> accelerator{state};
    auto model = accelerator.prepare(std::make_shared<Weight>());
    accelerator.join_uneven_inputs(model, [&] {
      if (state.process_index() == 0) accelerator.backward(model(torch::ones({})));
      if (state.process_index() == 1) accelerator.backward(model(torch::ones({})), 1);
    });
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("at different calls"));
}

TEST_CASE("joined ranks: scales that differ are agreed on with those that have no batch") {
  struct Outcome {
    float weight;
    double scale;
  };
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    accel::Accelerator<accel::ddp, accel::fp16, accel::accumulate<1>, accel::on<accel::cpu>>
        accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto train = [&, &model = model, &optimizer = optimizer](float gradient) {
      accelerator.backward(model(torch::tensor(gradient)));
      optimizer.step();
      optimizer.zero_grad();
    };
    {
      const auto scope = accelerator.no_sync();
      train(state.process_index() == 0 ? 0.0f : std::numeric_limits<float>::infinity());
    }
    accelerator.join_uneven_inputs(model, [&] {
      if (state.process_index() == 0) train(4.0f);
    });
    return Outcome{net->w.item<float>(), accelerator.scaler().get_scale()};
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.weight == -2.0f);
    CHECK(outcome.scale == 32768);
  }
}
