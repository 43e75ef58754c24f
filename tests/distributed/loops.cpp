// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a loop means on several ranks, whatever the backend: gradients are the mean over ranks and
// micro-batches, counted losses the mean over items, ranks begin alike and end alike, differences
// are told. Every case runs with ddp and with every stage of sharded.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <limits>

using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using accel::test::run_ranks;
using accel::test::Weight;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

using Backends = std::tuple<accel::ddp, accel::sharded<accel::zero1>, accel::sharded<accel::zero2>,
                            accel::sharded<accel::zero3>, accel::shard_grad_op>;

template <class Backend, class Accumulation = accel::accumulate<1>, class Precision = accel::fp32>
using Loop = accel::Accelerator<Backend, Precision, Accumulation, accel::on<accel::cpu>>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

struct TwoLayers : torch::nn::Module {
  torch::nn::Linear used = register_module("used", torch::nn::Linear(2, 2));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return used(x); }
};

/// One layer after the other, and a parameter that is frozen.
struct InARow : torch::nn::Module {
  torch::nn::Linear l1 = register_module("l1", torch::nn::Linear(2, 2));
  torch::nn::Linear l2 = register_module("l2", torch::nn::Linear(2, 2));
  at::Tensor frozen = register_parameter("frozen", torch::ones({2}), /*requires_grad=*/false);
  at::Tensor forward(const at::Tensor& x) { return l2(l1(x)); }
};

/// Two weights, of which a forward uses those that it is told to.
struct Branches : torch::nn::Module {
  at::Tensor always = register_parameter("always", torch::zeros({}));
  at::Tensor branch = register_parameter("branch", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x, bool both) {
    return both ? always * x + branch * x : always * x;
  }
};

/// Running mean, running variance and counter of a batch normalization.
using Statistics = std::array<double, 3>;

/// Of a training with a loss scale.
struct Outcome {
  std::vector<float> weights{};
  std::vector<bool> skipped{};
  std::vector<double> scales{};
  bool operator==(const Outcome&) const = default;
};

}  // namespace

TEMPLATE_LIST_TEST_CASE(
    "B38 a window is reduced once, and the mean over ranks and micro-batches is stepped", "",
    Backends) {
  std::vector<double> weights(2);
  std::vector<int64_t> reductions(2);
  run_ranks(2, [&](const PartialState& state) {
    Loop<TestType, accel::accumulate<4>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 1; step <= 4; ++step)
      accelerator.accumulate(model, [&] {
        accelerator.backward(model(torch::tensor(float(step + 10 * state.process_index()))));
        optimizer.step();
        optimizer.zero_grad();
      });
    weights[static_cast<size_t>(state.process_index())] = net->w.item<double>();
    reductions[static_cast<size_t>(state.process_index())] = accelerator.reductions();
  });
  // Mean of 1..4 and 11..14 is 7.5.
  for (const double weight : weights) CHECK(weight == Catch::Approx(-0.75).epsilon(1e-6));
  // A stage that has no room for a whole gradient reduces every micro-batch.
  const int64_t times = TestType::shards_gradients ? 4 : 1;
  CHECK(reductions == std::vector<int64_t>{times, times});
}

TEMPLATE_LIST_TEST_CASE("B01 over two ranks, losses with a count: the mean over the items of all "
                        "ranks and micro-batches",
                        "", Backends) {
  const std::vector<std::vector<std::vector<float>>> kept{{{1, 2, 3}, {10}}, {{4}, {}}};
  std::vector<double> windowed(2), single(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    const auto train = [&](auto& accelerator, const std::vector<std::vector<float>>& batches) {
      auto net = std::make_shared<Weight>();
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (const auto& batch : batches)
        accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
          accelerator.backward(model(torch::tensor(batch)).sum(), batch.size());
          optimizer.step();
          optimizer.zero_grad();
        });
      return net->w.template item<double>();
    };
    Loop<TestType, accel::accumulate<2>> two{state};
    windowed[rank] = train(two, kept[rank]);
    Loop<TestType, accel::accumulate<1>> one{state};
    single[rank] = train(one, {kept[rank][0]});
  });
  for (size_t rank : {0, 1}) {
    CHECK(windowed[rank] == Catch::Approx(-0.4));  // 20 over 5 items
    CHECK(single[rank] == Catch::Approx(-0.25));   // 10 over 4
  }
}

TEMPLATE_LIST_TEST_CASE("B01 a loss over no items holds back the optimizers that it reaches, and "
                        "no others",
                        "", Backends) {
  struct Weights {
    double first, second, mixed;
    bool skipped_first, skipped_second;
  };
  std::vector<Weights> seen(2);
  run_ranks(2, [&](const PartialState& state) {
    Loop<TestType, accel::accumulate<1>> accelerator{state};
    const auto momentum = [](const torch::nn::Module& module) {
      return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    };
    auto net_1 = std::make_shared<Weight>(), net_2 = std::make_shared<Weight>();
    auto sgd_1 = momentum(*net_1), sgd_2 = momentum(*net_2);
    auto [first, second, step_1, step_2] = accelerator.prepare(net_1, net_2, sgd_1, sgd_2);
    const auto x = torch::ones({5});
    const auto count = [&](auto& model, int64_t items) {
      accelerator.backward(model(x.slice(0, 0, items)).sum(), items);
    };
    // Whichever of the two comes first.
    count(first, 5), count(second, 5), step_1.step(), step_2.step();
    step_1.zero_grad(), step_2.zero_grad();
    count(first, 5), count(second, 0), step_1.step(), step_2.step();
    step_1.zero_grad(), step_2.zero_grad();
    count(second, 0), count(first, 5), step_1.step(), step_2.step();
    const bool skipped_first = step_1.step_was_skipped(), skipped = step_2.step_was_skipped();
    step_1.zero_grad(), step_2.zero_grad();

    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    if constexpr (!TestType::shards_gradients) {
      // A mean loss, and one over nothing, on either side of it.
      accelerator.backward(model(x).mean()), count(model, 0), optimizer.step();
      optimizer.zero_grad();
      count(model, 0), accelerator.backward(model(x).mean()), optimizer.step();
      optimizer.zero_grad();
    }
    seen[static_cast<size_t>(state.process_index())] = {
        net_1->w.template item<double>(), net_2->w.template item<double>(),
        net->w.template item<double>(), skipped_first, skipped};
  });
  for (const auto& weights : seen) {
    CHECK(weights.first == Catch::Approx(-(0.1 + 0.19 + 0.271)));  // three steps
    CHECK(weights.second == Catch::Approx(-0.1));                  // one: momentum does not act
    CHECK_FALSE(weights.skipped_first);
    CHECK(weights.skipped_second);
    CHECK(weights.mixed == Catch::Approx(TestType::shards_gradients ? 0.0 : -0.2));
  }
}

TEMPLATE_LIST_TEST_CASE("B32 cleared gradients and bucket views: the same bits as zero-filled ones",
                        "", Backends) {
  for (const bool set_to_none : {true, false}) {
    std::vector<at::Tensor> gradients(2);
    run_ranks(2, [&](const PartialState& state) {
      Loop<TestType, accel::accumulate<1>> accelerator{state};
      auto net = std::make_shared<Weight>();
      torch::optim::SGD sgd(net->parameters(), 0.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int round = 0; round < 3; ++round) {
        optimizer.zero_grad(set_to_none);
        accelerator.backward(model(torch::tensor(1.5f + float(state.process_index()))));
      }
      gradients[static_cast<size_t>(state.process_index())] = net->w.grad().clone();
    });
    for (const auto& gradient : gradients) CHECK(gradient.item<float>() == 2.0f);
  }
}

TEMPLATE_LIST_TEST_CASE(
    "every rank starts with rank 0's parameters, and B23 ends a window with its buffers", "",
    Backends) {
  std::vector<at::Tensor> weights(2), means(2), variances(2);
  run_ranks(2, [&](const PartialState& state) {
    Loop<TestType, accel::accumulate<1>> accelerator{state};
    auto net = torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(1).momentum(0.1));
    torch::NoGradGuard no_grad;
    net->weight.fill_(1.0 + state.process_index());
    torch::optim::SGD sgd(net->parameters(), 0.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto x =
        state.is_main_process() ? torch::tensor({{0.f}, {2.f}}) : torch::tensor({{10.f}, {14.f}});
    at::AutoGradMode grad(true);
    accelerator.accumulate(model, [&] {
      auto first = model(x).sum(), second = model(x).sum();  // two forwards before one backward
      accelerator.backward(first + second);
      optimizer.step();
    });
    const auto rank = static_cast<size_t>(state.process_index());
    weights[rank] = net->weight.clone();
    means[rank] = net->running_mean.clone();
    variances[rank] = net->running_var.clone();
  });
  for (size_t rank : {0, 1}) {
    CHECK(weights[rank].item<float>() == 1.0f);
    CHECK(means[rank].item<float>() == Catch::Approx(0.19));  // twice rank 0's data
    CHECK(variances[rank].item<float>() == Catch::Approx(1.19));
  }
}

TEMPLATE_LIST_TEST_CASE("B37 ranks with different models are told which parameter differs", "",
                        Backends) {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Loop<TestType, accel::accumulate<1>> accelerator{state};
         (void)accelerator.prepare(torch::nn::Linear(2, state.is_main_process() ? 3 : 4));
       }))
    CHECK_THAT(error, ContainsSubstring("weight Float [3, 2]") &&
                          ContainsSubstring("weight Float [4, 2]"));
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Loop<TestType, accel::accumulate<1>> accelerator{state};
         auto net = torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(state.is_main_process()));
         (void)accelerator.prepare(net);
       }))
    CHECK_THAT(error, ContainsSubstring("'bias Float [3]'") && ContainsSubstring("nothing more"));
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Loop<TestType, accel::accumulate<1>> accelerator{state};
         torch::nn::Linear net(2, 3);
         if (!state.is_main_process()) net->to(torch::kDouble);
         (void)accelerator.prepare(net);
       }))
    CHECK_THAT(error, ContainsSubstring("weight Float [3, 2]") &&
                          ContainsSubstring("weight Double [3, 2]"));
  struct InOrder : torch::nn::Module {
    InOrder(const char* first, const char* second) {
      register_parameter(first, torch::ones({2}));
      register_parameter(second, torch::ones({2}));
    }
  };
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Loop<TestType, accel::accumulate<1>> accelerator{state};
         (void)accelerator.prepare(state.is_main_process() ? std::make_shared<InOrder>("a", "b")
                                                           : std::make_shared<InOrder>("b", "a"));
       }))
    CHECK_THAT(error, ContainsSubstring("rank 0 has 'a Float [2]' where rank 1 has 'b Float [2]'"));
}

TEMPLATE_LIST_TEST_CASE("a parameter that is unfrozen after prepare is reduced from then on", "",
                        Backends) {
  std::vector<float> frozen(2), thawed(2);
  run_ranks(2, [&](const PartialState& state) {
    Loop<TestType, accel::accumulate<1>> accelerator{state};
    auto net = std::make_shared<TwoLayers>();
    for (auto& parameter : net->unused->parameters()) parameter.set_requires_grad(false);
    auto model = accelerator.prepare(net);
    const auto x = torch::full({1, 2}, float(1 + state.process_index()));
    const auto rank = static_cast<size_t>(state.process_index());
    for (int step = 0; step < 2; ++step) accelerator.backward(model(x).sum());
    frozen[rank] = net->used->weight.grad()[0][0].item<float>();
    for (auto& parameter : net->unused->parameters()) parameter.set_requires_grad(true);
    for (int step = 0; step < 2; ++step) accelerator.backward(net->unused(model(x) * 0 + x).sum());
    thawed[rank] = net->unused->weight.grad()[0][0].item<float>();
  });
  CHECK(frozen == std::vector<float>{3, 3});  // twice the mean of 1 and 2
  CHECK(thawed == std::vector<float>{3, 3});
}

TEMPLATE_LIST_TEST_CASE("of several models, those that the loss was computed with are reduced", "",
                        Backends) {
  std::vector<at::Tensor> first(2), second(2);
  run_ranks(2, [&](const PartialState& state) {
    Loop<TestType, accel::accumulate<1>> accelerator{state};
    auto [a, b] = accelerator.prepare(std::make_shared<Weight>(), std::make_shared<Weight>());
    const auto x = torch::tensor(float(state.process_index()));
    accelerator.accumulate(a, b, [&, a = a, b = b] {
      accelerator.backward(a(x));
      accelerator.backward(b(x) * 2);
    });
    first[static_cast<size_t>(state.process_index())] = a->w.grad().clone();
    second[static_cast<size_t>(state.process_index())] = b->w.grad().clone();
  });
  for (size_t rank : {0, 1}) {
    CHECK(first[rank].item<float>() == 0.5f);
    CHECK(second[rank].item<float>() == 1.0f);
  }
}

TEMPLATE_LIST_TEST_CASE("row 7: what only a part of a window used is reduced with it, once", "",
                        Backends) {
  struct Outcome {
    std::vector<float> always{}, branch{};
    int64_t reductions = 0;
  };
  // Whether a micro-batch uses the branch, on each rank.
  const std::vector<std::array<bool, 2>> uses{{true, true},   {false, false},  // early
                                              {false, false}, {true, true},    // late
                                              {true, false},  {false, false},  // early, on one rank
                                              {true, false},  {false, true}};
  const auto outcomes = results_of_ranks<Outcome>(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    accel::AcceleratorOptions options;
    options.ddp.find_unused_parameters = true;
    Loop<TestType, accel::accumulate<2>> accelerator{state, options};
    auto net = std::make_shared<Branches>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Outcome outcome;
    for (size_t micro_batch = 0; micro_batch < uses.size(); ++micro_batch)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        const auto x = torch::tensor(2.0f + 4.0f * float(rank));
        accelerator.backward(model(x, uses[micro_batch][rank]));
        if (accelerator.sync_gradients()) {
          outcome.always.push_back(net->always.grad().item<float>());
          outcome.branch.push_back(net->branch.grad().item<float>());
        }
        optimizer.step();
        optimizer.zero_grad();
      });
    outcome.reductions = accelerator.reductions();
    return outcome;
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.always == std::vector<float>{4, 4, 4, 4});
    CHECK(outcome.branch == std::vector<float>{2, 2, 0.5f, 2});
    CHECK(outcome.reductions == (TestType::shards_gradients ? 8 : 4));
  }
}

TEMPLATE_LIST_TEST_CASE(
    "B23 buffers: each rank's own in a window, rank 0's behind it, and synchronized ones", "",
    Backends) {
  const auto statistics_of = [](bool synchronized) {
    return results_of_ranks<std::vector<Statistics>>(2, [=](const PartialState& state) {
      accel::AcceleratorOptions options;
      options.ddp.sync_batch_norm = synchronized;
      Loop<TestType> accelerator{state, options};
      auto net = torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(1).momentum(0.1));
      auto model = accelerator.prepare(net);
      const auto x =
          state.is_main_process() ? torch::tensor({{0.f}, {2.f}}) : torch::tensor({{10.f}, {14.f}});
      std::vector<Statistics> seen;
      const auto look = [&] {
        seen.push_back({net->running_mean.item<double>(), net->running_var.item<double>(),
                        net->num_batches_tracked.item<double>()});
      };
      for (int window = 0; window < 2; ++window) {
        accelerator.accumulate(model, [&] {
          accelerator.backward(model(x).sum());
          look();
        });
        look();
      }
      return seen;
    });
  };
  const auto check = [](const std::vector<Statistics>& seen,
                        const std::vector<Statistics>& expected) {
    REQUIRE(seen.size() == expected.size());
    for (size_t i = 0; i < seen.size(); ++i)
      for (size_t part = 0; part < 3; ++part) {
        CAPTURE(i, part);
        CHECK(seen[i][part] == Approx(expected[i][part]));
      }
  };
  const auto own = statistics_of(false);
  check(own[0], {{0.1, 1.1, 1}, {0.1, 1.1, 1}, {0.19, 1.19, 2}, {0.19, 1.19, 2}});
  check(own[1], {{1.2, 1.7, 1}, {0.1, 1.1, 1}, {1.29, 1.79, 2}, {0.19, 1.19, 2}});
  for (const auto& seen : statistics_of(true))
    check({seen[0], seen[1]}, {{0.65, 5.2666669, 1}, {0.65, 5.2666669, 1}});
}

TEMPLATE_LIST_TEST_CASE(
    "row 10: an overflow that one rank sees skips the step on all, to the same scale", "",
    Backends) {
  const auto outcomes = results_of_ranks<Outcome>(2, [](const PartialState& state) {
    Loop<TestType, accel::accumulate<1>, accel::fp16> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Outcome outcome;
    for (const float gradient : {infinity, 3.0f})
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        const auto mine = state.process_index() == 1 ? gradient : 1.0f;
        accelerator.backward(model(torch::tensor(mine)));
        optimizer.step();
        optimizer.zero_grad();
        outcome.weights.push_back(net->w.item<float>());
        outcome.skipped.push_back(optimizer.step_was_skipped());
        outcome.scales.push_back(accelerator.scaler().get_scale());
      });
    outcome.scales.push_back(accelerator.scaler().get_scale());
    return outcome;
  });
  // Inside the window the scale is still that of its losses.
  const Outcome expected{{0, -2}, {true, false}, {65536, 32768, 32768}};
  for (const auto& outcome : outcomes) CHECK(outcome == expected);
}

TEMPLATE_LIST_TEST_CASE(
    "B30 a gradient that becomes NaN on one rank is named with it on all, before the step", "",
    Backends) {
  std::vector<at::Tensor> before(2), after(2);
  const auto errors = errors_of_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Loop<TestType> accelerator{state};
    auto net = std::make_shared<InARow>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 5; ++step)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        auto loss = model(torch::ones({1, 2})).sum();
        if (step == 3 && rank == 1) loss = loss + net->l2->bias[1] * nan_value;
        accelerator.backward(loss);
        before[rank] = net->l2->bias.detach().clone();
        try {
          accelerator.check_finite(model, step);
        } catch (const accel::Error&) {
          after[rank] = net->l2->bias.detach().clone();
          throw;
        }
        optimizer.step();
        optimizer.zero_grad();
      });
  });
  for (size_t rank : {0, 1}) {
    CHECK_THAT(errors[rank],
               ContainsSubstring(fmt::format("rank {}: step 3: the gradient of l2.bias has 1 of 2 "
                                             "values that are not finite, the first at [1]: nan, "
                                             "which came from rank 1;",
                                             rank)));
    CHECK(torch::equal(before[rank], after[rank]));
  }
}
