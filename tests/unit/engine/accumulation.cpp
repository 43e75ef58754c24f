// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Windows: which micro-batch closes one, and what the gradients of a short one are.
#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using namespace accel;

namespace {

/// A loss `w * x` has the gradient x.
struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

std::vector<at::Tensor> samples(std::vector<float> values) {
  std::vector<at::Tensor> tensors;
  for (float value : values) tensors.push_back(torch::tensor(value));
  return tensors;
}

template <class Accumulation>
using Single = Accelerator<single, fp32, Accumulation, on<cpu>>;

}  // namespace

TEMPLATE_TEST_CASE(
    "B03 the end of a loader closes the window, and its gradient is the mean over what it saw", "",
    accumulate<2>, accumulate<dynamic>) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 2;
  Single<TestType> accelerator(options);
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, data_loader(samples({1, 2, 3, 4, 5}), {.batch_size = 1}));
  std::vector<bool> flags;
  std::vector<double> weights;
  for (auto& x : loader)
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(x).sum());
      optimizer.step();
      optimizer.zero_grad();
      flags.push_back(accelerator.sync_gradients());
      if (flags.back()) weights.push_back(net->w.item<double>());
    });
  CHECK(flags == std::vector<bool>{false, true, false, true, true});
  REQUIRE(weights.size() == 3);
  CHECK(weights[0] == Catch::Approx(-0.15));
  CHECK(weights[1] == Catch::Approx(-0.5));
  CHECK(weights[2] == Catch::Approx(-1.0));
}

TEMPLATE_TEST_CASE("B01 losses with a count: the mean over the items of a window", "",
                   accumulate<1>, accumulate<2>, accumulate<dynamic>) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = TestType::is_static ? 1 : 2;
  Single<TestType> accelerator(options);
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto train = [&, &model = model, &optimizer = optimizer](std::vector<float> kept) {
    accelerator.accumulate(model, [&] {
      const auto count = kept.size();
      accelerator.backward(model(torch::tensor(kept)).sum(), count);
      optimizer.step();
      optimizer.zero_grad();
    });
  };
  if constexpr (std::is_same_v<TestType, accumulate<1>>) {
    train({1, 2, 3, 10});
  } else {
    train({1, 2, 3});
    CHECK(net->w.template item<double>() == 0.0);
    train({10});
  }
  CHECK(net->w.template item<double>() == Catch::Approx(-0.4));
  CHECK_FALSE(optimizer.step_was_skipped());

  // Nothing to learn from in a whole window: not even the momentum moves.
  train({});
  train({});
  CHECK(net->w.template item<double>() == Catch::Approx(-0.4));
  CHECK(optimizer.step_was_skipped());
}

TEST_CASE("B01 a window of losses with a count whose last micro-batch has no backward") {
  Single<accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto train = [&, &model = model, &optimizer = optimizer](std::vector<float> kept) {
    accelerator.accumulate(model, [&] {
      if (!kept.empty()) {
        const auto count = kept.size();
        accelerator.backward(model(torch::tensor(kept)).sum(), count);
      }
      if (accelerator.sync_gradients()) {
        CHECK(net->w.grad().item<double>() == 6.0);
        CHECK(accelerator.clip_grad_norm_(model, 1e9).item<double>() == 2.0);
      }
      optimizer.step();
      optimizer.zero_grad();
    });
  };
  for (const double weight : {-0.2, -0.4}) {
    train({1, 2, 3});
    train({});
    CHECK(net->w.item<double>() == Catch::Approx(weight));
    CHECK_FALSE(optimizer.step_was_skipped());
  }
}

TEST_CASE("a short window of losses with a count needs no correction") {
  Single<accumulate<4>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, data_loader(samples({1, 2, 6}), {.batch_size = 1}));
  for (auto& x : loader)
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(x).sum(), torch::tensor(1));
      optimizer.step();
    });
  CHECK(net->w.item<double>() == Catch::Approx(-0.3));
}

TEST_CASE("losses with and without a count do not mix, and a count is not negative") {
  Single<accumulate<2>> accelerator;
  auto model = accelerator.prepare(std::make_shared<Weight>());
  accelerator.accumulate(model, [&] { accelerator.backward(model(torch::ones({})), 1); });
  CHECK_THROWS_WITH(
      accelerator.accumulate(model, [&] { accelerator.backward(model(torch::ones({}))); }),
      Catch::Matchers::ContainsSubstring("losses with a count and losses without"));
  CHECK_THROWS_WITH(accelerator.backward(model(torch::ones({})), -1),
                    Catch::Matchers::ContainsSubstring("-1 items"));
}

TEST_CASE("B04 validation inside training changes no flag") {
  for (const int validated : {3, 1}) {  // to its end, or left after one batch
    Single<accumulate<2>> accelerator;
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer, train, validation] = accelerator.prepare(
        net, sgd, data_loader(samples({1, 2, 3, 4, 5})), data_loader(samples({7, 8, 9})));
    std::vector<bool> flags;
    int step = 0;
    for (auto& x : train) {
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        accelerator.backward(model(x).sum());
        optimizer.step();
        optimizer.zero_grad();
        flags.push_back(accelerator.sync_gradients());
      });
      if (step++ == 1) {
        int seen = 0;
        for (auto& y : validation) {
          (void)model(y);
          if (++seen == validated) break;
        }
      }
    }
    CHECK(flags == std::vector<bool>{false, true, false, true, true});
  }
}

TEST_CASE("B04 a window that was left with its loader does not leak into the next") {
  Single<accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.0);
  auto [model, optimizer, train] =
      accelerator.prepare(net, sgd, data_loader(samples({1, 3, 50, 7, 9})));
  const auto micro_batch = [&, &model = model, &optimizer = optimizer](at::Tensor& x,
                                                                       auto&& after) {
    accelerator.accumulate(model, [&] {
      accelerator.backward(model(x).sum());
      optimizer.step();
      after();
      optimizer.zero_grad();
    });
  };
  int step = 0;
  for (auto& x : train) {
    micro_batch(x, [] {});
    if (step++ == 2) break;  // one micro-batch, the gradient 25, is pending
  }
  std::vector<double> gradients;
  for (auto& x : train)
    micro_batch(x, [&] {
      if (accelerator.sync_gradients()) gradients.push_back(net->w.grad().item<double>());
    });
  CHECK(gradients.front() == 2.0);
}

TEST_CASE("B05 inner micro-batches are counted alone where the loader's end does not count") {
  AcceleratorOptions options;
  options.sync_with_dataloader = false;
  Single<accumulate<4>> accelerator(options);
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, train] = accelerator.prepare(net, sgd, data_loader(samples({1, 2, 3})));
  std::vector<int> stepped;
  int micro_step = 0;
  for (auto& x : train)
    for (int inner = 0; inner < 4; ++inner)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        ++micro_step;
        accelerator.backward(model(x).sum());
        optimizer.step();
        optimizer.zero_grad();
        if (accelerator.sync_gradients()) stepped.push_back(micro_step);
      });
  CHECK(stepped == std::vector<int>{4, 8, 12});
}

TEST_CASE("B06 a schedule steps once an optimizer step, or by Accelerate's rule") {
  Single<accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto schedule = LambdaLR(sgd, [](int64_t t) { return std::pow(0.5, double(t)); });
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, schedule);
  for (int micro_batch = 0; micro_batch < 8; ++micro_batch)
    accelerator.accumulate(model,
                           [&, &model = model, &optimizer = optimizer, &scheduler = scheduler] {
                             accelerator.backward(model(torch::ones({})));
                             optimizer.step();
                             scheduler.step();
                             optimizer.zero_grad();
                           });
  CHECK(schedule.get_last_lr().front() == Catch::Approx(0.00625));
}

TEST_CASE("B32 clearing at a non-boundary is a no-op") {
  Single<accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (const float x : {1.0f, 3.0f})
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(torch::tensor(x)));
      if (!accelerator.sync_gradients()) optimizer.zero_grad();
    });
  CHECK(net->w.grad().item<double>() == 2.0);
}

TEST_CASE("a body that throws after its backward ends its micro-batch, and the window goes on") {
  Single<accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  auto model = accelerator.prepare(net);
  CHECK_THROWS(accelerator.accumulate(model, [&] {
    accelerator.backward(model(torch::ones({})));
    throw std::runtime_error("bad log file");
  }));
  CHECK_FALSE(accelerator.sync_gradients());
  accelerator.accumulate(model, [&] { accelerator.backward(model(torch::ones({}))); });
  CHECK(accelerator.sync_gradients());
}

TEST_CASE("the number of steps changes between windows, and in one it is refused") {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 2;
  Single<accumulate<dynamic>> accelerator(options);
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto micro_batch = [&, &model = model, &optimizer = optimizer](float x) {
    accelerator.accumulate(model, [&] {
      accelerator.backward(model(torch::tensor(x)));
      optimizer.step();
      optimizer.zero_grad();
    });
  };
  micro_batch(1);
  CHECK_THROWS_WITH(accelerator.set_gradient_accumulation_steps(3),
                    Catch::Matchers::ContainsSubstring("set to 3 after 1 micro-batches of one"));
  micro_batch(3);
  CHECK(net->w.item<float>() == -2);
  CHECK_THROWS_WITH(accelerator.set_gradient_accumulation_steps(0),
                    Catch::Matchers::ContainsSubstring("set to 0"));
  accelerator.set_gradient_accumulation_steps(3);
  for (const float x : {3.0f, 6.0f, 9.0f}) micro_batch(x);
  CHECK(net->w.item<float>() == -8);
}

TEST_CASE(
    "B01 B07 a window of no items and one that overflowed leave AdamW's state and step alone") {
  AcceleratorOptions scaled;
  scaled.grad_scaler.init_scale = 1024;
  // What a training without those windows has.
  const auto train = [&](bool disturbed) {
    Accelerator<single, fp16, accumulate<2>, on<cpu>> accelerator(scaled);
    auto net = std::make_shared<Weight>();
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const auto window = [&, &model = model, &optimizer = optimizer](float x, int count) {
      for (int i = 0; i < 2; ++i)
        accelerator.accumulate(model, [&] {
          accelerator.backward(model(torch::tensor(x)) * count, count);
          optimizer.step();
          optimizer.zero_grad();
        });
      return optimizer.step_was_skipped();
    };
    CHECK_FALSE(window(1, 3));
    if (disturbed) {
      CHECK(window(5, 0));
      CHECK(window(std::numeric_limits<float>::infinity(), 1));
    }
    CHECK_FALSE(window(2, 1));
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(
        *adamw.state().at(net->w.unsafeGetTensorImpl()));
    return std::tuple(state.step(), net->w.item<float>(), state.exp_avg().item<float>());
  };
  const auto expected = train(false);
  CHECK(std::get<0>(expected) == 2);
  CHECK(train(true) == expected);
}

TEST_CASE("backward outside accumulate is not divided") {
  Single<accumulate<4>> accelerator;
  auto net = std::make_shared<Weight>();
  auto model = accelerator.prepare(net);
  accelerator.backward(model(torch::tensor(3.0f)));
  CHECK(net->w.grad().item<double>() == 3.0);
}

TEST_CASE("the number of steps at run time must be positive") {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 0;
  CHECK_THROWS_WITH(Single<accumulate<dynamic>>(options),
                    Catch::Matchers::ContainsSubstring("at least 1, and is 0"));
}
