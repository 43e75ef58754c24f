// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Autocast scopes, the loss scaler, clipping, 16-bit parameters with fp32 masters.
#include "support/scratch_folder.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using namespace accel;

namespace {

struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

template <class Precision, class Accumulation = accumulate<1>>
using Single = Accelerator<single, Precision, Accumulation, on<cpu>>;

const float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("B39 cast weights are not kept across a step or a region") {
  auto weight = torch::ones({1, 1}).requires_grad_();
  const auto x = torch::full({1, 1}, 2.0f);
  const auto forward = [&] {
    const AutocastScope scope(torch::kCPU, torch::kBFloat16);
    return at::linear(x, weight);
  };
  auto first = forward();
  CHECK(first.item<float>() == 2.0f);
  first.backward();
  CHECK(weight.grad().item<float>() == 2.0f);
  {
    torch::NoGradGuard no_grad;
    weight.sub_(0.25 * weight.grad());
  }
  CHECK(forward().item<float>() == 1.0f);
}

TEST_CASE("B39 a convolution's weight, averaged weights and a loaded state are seen by the next "
          "forward") {
  const accel_test::ScratchFolder folder;
  Single<bf16> accelerator;
  auto net = torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 1, 1).bias(false));
  torch::nn::init::ones_(net->weight);
  torch::optim::SGD sgd(net->parameters(), 0.25);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  ExponentialMovingAverage average(net.ptr(), 0.5);
  average.update();
  accelerator.save_state(folder.path() / "ones");
  const auto x = torch::full({1, 1, 1}, 2.0f);
  const auto region = accelerator.autocast();
  const auto forward = [&, &model = model] { return model(x).template item<float>(); };
  CHECK(forward() == 2.0f);
  accelerator.backward(model(x).sum());
  optimizer.step();
  CHECK(forward() == 1.0f);
  average.update();  // 0.75
  {
    const auto averaged = average.apply();
    CHECK(forward() == 1.5f);
  }
  CHECK(forward() == 1.0f);
  accelerator.load_state(folder.path() / "ones");
  CHECK(forward() == 2.0f);
}

TEST_CASE("B39 a step inside one long region is seen by the next forward") {
  Single<bf16> accelerator;
  auto net = torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::init::ones_(net->weight);
  torch::optim::SGD sgd(net->parameters(), 0.25);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto x = torch::full({1, 1}, 2.0f);
  const auto region = accelerator.autocast();
  accelerator.backward(model(x).sum());
  optimizer.step();
  CHECK(model(x).item<float>() == 1.0f);
}

TEST_CASE("B39 a forward without gradients leaves nothing that cuts the next graph") {
  auto weight = torch::ones({1, 1}).requires_grad_();
  const AutocastScope scope(torch::kCPU, torch::kBFloat16);
  {
    torch::NoGradGuard no_grad;
    (void)at::linear(torch::ones({1, 1}), weight);
  }
  CHECK(at::linear(torch::ones({1, 1}), weight).requires_grad());
}

TEST_CASE("B39 scopes nest, can be disabled, and restore what was there after an exception") {
  CHECK_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  const auto before = at::autocast::get_autocast_dtype(torch::kCPU);
  try {
    const AutocastScope outer(torch::kCPU, torch::kHalf);
    {
      const AutocastScope inner(torch::kCPU, torch::kBFloat16, /*enabled=*/false);
      CHECK_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
    }
    CHECK(at::autocast::is_autocast_enabled(torch::kCPU));
    CHECK(at::autocast::get_autocast_dtype(torch::kCPU) == torch::kHalf);
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  CHECK_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  CHECK(at::autocast::get_autocast_dtype(torch::kCPU) == before);
}

TEST_CASE("outputs of an autocast model are fp32, and members run in its scope") {
  Single<bf16> accelerator;
  auto net = torch::nn::Linear(4, 2);
  auto model = accelerator.prepare(net);
  CHECK(model(torch::ones({1, 4})).scalar_type() == torch::kFloat);
  CHECK(model->forward(torch::ones({1, 4})).scalar_type() == torch::kBFloat16);
  CHECK(net->forward(torch::ones({1, 4})).scalar_type() ==
        torch::kFloat);  // the module is untouched
  CHECK(accelerator.unwrap_model(model) == net.ptr());
}

TEST_CASE("B07 the scaler's trace, skipped steps and resume") {
  AcceleratorOptions options;
  options.grad_scaler.growth_interval = 2;
  struct Row {
    bool finite, stepped;
    double scale;
    int64_t growth;
    double w, lr;
  };
  const std::vector<Row> rows{
      {false, false, 32768, 0, 0, .1},      {true, true, 32768, 1, -.1, .05},
      {true, true, 65536, 0, -.2, .025},    {true, true, 65536, 1, -.3, .0125},
      {false, false, 32768, 0, -.3, .0125}, {true, true, 32768, 1, -.4, .00625}};
  GradScalerState saved;
  const auto play = [&](size_t from, const std::function<void(GradScaler&)>& prepare_scaler) {
    Single<fp16> accelerator(options);
    prepare_scaler(accelerator.scaler());
    auto net = std::make_shared<Weight>();
    {
      torch::NoGradGuard no_grad;
      if (from > 0) net->w.fill_(rows[from - 1].w);
    }
    torch::optim::SGD sgd(net->parameters(), 0.1);
    // The schedule's rate is watched on an optimizer of its own, so that every step has lr 0.1.
    torch::optim::SGD watched({torch::zeros({1})}, 0.1);
    auto halving = LambdaLR(watched, [](int64_t t) { return std::pow(0.5, double(t)); });
    if (from > 0) halving.load_last_epoch(3);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, halving);
    for (size_t i = from; i < rows.size(); ++i) {
      CAPTURE(i);
      const auto x = torch::tensor(rows[i].finite ? 1.0f : infinity);
      accelerator.accumulate(model,
                             [&, &model = model, &optimizer = optimizer, &scheduler = scheduler] {
                               accelerator.backward(model(x));
                               optimizer.step();
                               scheduler.step();
                               optimizer.zero_grad();
                             });
      CHECK(optimizer.step_was_skipped() == !rows[i].stepped);
      CHECK(accelerator.optimizer_step_was_skipped() == !rows[i].stepped);
      CHECK(accelerator.scaler().get_scale() == rows[i].scale);
      CHECK(accelerator.scaler().growth_tracker() == rows[i].growth);
      CHECK(net->w.item<double>() == Catch::Approx(rows[i].w).margin(1e-7));
      CHECK(halving.get_last_lr().front() == Catch::Approx(rows[i].lr));
      if (i == 3) saved = accelerator.scaler().state();
    }
  };
  play(0, [](GradScaler&) {});
  CHECK(saved.scale == 65536);
  CHECK(saved.growth_tracker == 1);
  play(4, [&](GradScaler& scaler) { scaler.load_state(saved); });
}

TEST_CASE("B07 an overflow in one micro-batch skips the window, and the next one starts clean") {
  Single<fp16, accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (const float x : {infinity, 1.0f, 2.0f, 4.0f})
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(torch::tensor(x)));
      optimizer.step();
      optimizer.zero_grad();
    });
  CHECK(net->w.item<double>() == Catch::Approx(-0.3));
  CHECK_FALSE(optimizer.step_was_skipped());
}

TEST_CASE("B08 gradients are unscaled once and clipped once a window") {
  AcceleratorOptions options;
  options.grad_scaler.init_scale = 1024;
  Single<fp16, accumulate<2>> accelerator(options);
  struct Two : torch::nn::Module {
    at::Tensor w = register_parameter("w", torch::zeros({2}));
    at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
  };
  auto net = std::make_shared<Two>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  // Losses are divided by the window: twice the gradient gives the case's [3, 0] and [0, 4].
  std::vector<double> norms;
  for (const auto& x : {torch::tensor({6.0f, 0.0f}), torch::tensor({0.0f, 8.0f})})
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(x));
      norms.push_back(accelerator.clip_grad_norm_(model, 1.0).template item<double>());
      if (!accelerator.sync_gradients()) return;
      CHECK(net->w.grad()[0].item<double>() == Catch::Approx(0.5999999).epsilon(1e-6));
      CHECK(net->w.grad()[1].item<double>() == Catch::Approx(0.7999998).epsilon(1e-6));
      norms.push_back(accelerator.clip_grad_norm_(model, 1.0).template item<double>());
      optimizer.step();
    });
  REQUIRE(norms.size() == 3);
  CHECK(std::isnan(norms[0]));
  CHECK(norms[1] == Catch::Approx(5.0));
  CHECK(norms[2] == Catch::Approx(1.0).epsilon(1e-5));
  CHECK(net->w[0].item<double>() == Catch::Approx(-0.6).epsilon(1e-5));
}

TEST_CASE("the scale is updated once for several optimizers, inside accumulate and outside") {
  AcceleratorOptions options;
  options.grad_scaler.growth_interval = 100;
  for (const bool inside : {true, false}) {
    CAPTURE(inside);
    Single<fp16> accelerator(options);
    auto one = std::make_shared<Weight>(), two = std::make_shared<Weight>();
    torch::optim::SGD sgd_one(one->parameters(), 1.0), sgd_two(two->parameters(), 1.0);
    auto [a, b, first, second] = accelerator.prepare(one, two, sgd_one, sgd_two);
    const auto step = [&, &a = a, &b = b, &first = first, &second = second](float x, float y) {
      accelerator.backward(a(torch::tensor(x)) + b(torch::tensor(y)));
      accelerator.clip_grad_norm_(a, 1e9);
      accelerator.clip_grad_norm_(b, 1e9);
      first.step();
      second.step();
      first.zero_grad();
      second.zero_grad();
    };
    const auto window = [&](float x, float y) {
      inside ? accelerator.accumulate(a, b, [&] { step(x, y); }) : step(x, y);
    };
    window(1, 2);
    CHECK(one->w.item<float>() == -1.0f);
    CHECK(two->w.item<float>() == -2.0f);
    CHECK(accelerator.scaler().growth_tracker() == 1);
    window(infinity, 3);  // the first optimizer skips, the second need not
    CHECK(one->w.item<float>() == -1.0f);
    CHECK(two->w.item<float>() == -5.0f);
    CHECK(accelerator.scaler().get_scale() == 32768);
    window(1, 1);
    CHECK(one->w.item<float>() == -2.0f);
    CHECK(two->w.item<float>() == -6.0f);
  }
}

TEST_CASE("stepping after the scope of accumulate unscales once too") {
  Single<fp16, accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
    accelerator.accumulate(model, [&, &model = model] {
      accelerator.backward(model(torch::ones({})));
      accelerator.clip_grad_norm_(model, 1e9);
    });
    optimizer.step();
    optimizer.zero_grad();
  }
  CHECK(net->w.item<float>() == -2.0f);
}

TEST_CASE("16-bit parameters leave integer buffers as they are") {
  Single<bf16_true> accelerator;
  auto model = accelerator.prepare(torch::nn::BatchNorm1d(2));
  CHECK(model->weight.scalar_type() == torch::kBFloat16);
  CHECK(model->running_mean.scalar_type() == torch::kBFloat16);
  CHECK(model->num_batches_tracked.scalar_type() == torch::kLong);
}

TEST_CASE("B30 clipping does not spread a NaN") {
  auto gradients = std::vector<at::Tensor>{torch::tensor({3.0f}), torch::tensor({std::nanf("")})};
  CHECK(std::isnan(clip_norm_(gradients, 1.0).item<double>()));
  CHECK(gradients[0].item<float>() == 3.0f);
}

TEST_CASE("clip_norm_ takes any norm, and clip_value_ clamps") {
  const auto fresh = [] {
    return std::vector<at::Tensor>{torch::tensor({3.0f, -4.0f}), torch::tensor({12.0f})};
  };
  auto gradients = fresh();
  CHECK(clip_norm_(gradients, 1e9, 2.0).item<double>() == Catch::Approx(13.0));
  CHECK(clip_norm_(gradients, 1e9, 1.0).item<double>() == Catch::Approx(19.0));
  CHECK(clip_norm_(gradients, 6.0, std::numeric_limits<double>::infinity()).item<double>() ==
        Catch::Approx(12.0));
  CHECK(gradients[1].item<float>() == Catch::Approx(6.0f));
  gradients = fresh();
  clip_value_(gradients, 3.5);
  CHECK(torch::equal(gradients[0], torch::tensor({3.0f, -3.5f})));
  CHECK(clip_norm_({}, 1.0).item<double>() == 0.0);
}

TEST_CASE("a loss that is never finite is an error, not an endless skip") {
  GradScalerOptions options;
  options.init_scale = 1;
  options.max_skips = 3;
  GradScaler scaler(options);
  const auto overflow = [&] {
    scaler.unscale_({torch::tensor({infinity})});
    scaler.update();
  };
  overflow();
  overflow();
  CHECK_THROWS_WITH(overflow(), Catch::Matchers::ContainsSubstring("3 windows in a row"));
}

TEST_CASE("fp32 masters keep updates that 16 bits would round away") {
  const auto train = [](auto accelerator) {
    auto net = std::make_shared<Weight>();
    {
      torch::NoGradGuard no_grad;
      net->w.fill_(1.0);
    }
    torch::optim::SGD sgd(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    CHECK(net->w.scalar_type() == torch::kBFloat16);
    for (int step = 0; step < 16; ++step) {
      accelerator.backward(model(torch::ones({})));
      optimizer.step();
      optimizer.zero_grad();
    }
    return net->w.template item<float>();
  };
  CHECK(train(Single<bf16_true>()) == 1.0f);  // 1 - 0.001 is 1 in bfloat16
  CHECK(train(Single<with_masters<bf16_true>>()) == Catch::Approx(1 - 0.016).margin(0.002));
}

TEST_CASE("fp32 masters outlast averaged weights that were evaluated, and follow written ones") {
  Single<with_masters<bf16_true>> accelerator;
  auto net = std::make_shared<Weight>();
  {
    torch::NoGradGuard no_grad;
    net->w.fill_(1.0);
  }
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  ExponentialMovingAverage average(net, 0.9);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(model(torch::ones({})));
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < 16; ++i) {
    step();
    average.update();
    const auto applied = average.apply();
  }
  const auto master = [&sgd] { return sgd.param_groups()[0].params()[0].item<double>(); };
  CHECK(master() == Catch::Approx(1 - 0.016).margin(1e-6));
  {
    torch::NoGradGuard no_grad;
    net->w.fill_(3.0);
  }
  step();
  CHECK(master() == Catch::Approx(3 - 0.001).margin(1e-6));
}
