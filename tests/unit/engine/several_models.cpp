// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Several models and optimizers in one window: what is done once a window is done once to each.
#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using namespace accel;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

at::Tensor value(double x) { return torch::tensor(x, torch::kFloat); }

template <class Precision, class Accumulation>
using Single = Accelerator<single, Precision, Accumulation, on<cpu>>;

/// Two models that are trained in turn in each micro-batch, as a GAN's are.
template <class A>
struct Pair {
  explicit Pair(A& owner) : accelerator(owner) {}

  /// One micro-batch in which the gradient of each model is its own x. With a `norm`, the first is
  /// clipped to it.
  void train(double x, double y, std::optional<double> norm = std::nullopt) {
    accelerator.accumulate(a, b, [&] {
      accelerator.backward(a(value(x)));
      if (norm) accelerator.clip_grad_norm_(a, *norm);
      first.step();
      first.zero_grad();
      accelerator.backward(b(value(y)));
      second.step();
      second.zero_grad();
    });
  }

  A& accelerator;
  std::shared_ptr<Weight> one = std::make_shared<Weight>(), two = std::make_shared<Weight>();
  torch::optim::SGD sgd_one{one->parameters(), 1.0}, sgd_two{two->parameters(), 1.0};
  decltype(accelerator.prepare(one)) a = accelerator.prepare(one), b = accelerator.prepare(two);
  decltype(accelerator.prepare(sgd_one)) first = accelerator.prepare(sgd_one),
                                         second = accelerator.prepare(sgd_two);
};

}  // namespace

TEST_CASE("a short window is corrected for each optimizer, whenever its loss came") {
  Single<fp32, accumulate<4>> accelerator;
  Pair pair(accelerator);
  auto loader =
      accelerator.prepare(data_loader(std::vector<at::Tensor>(6, value(0)), {.batch_size = 1}));
  for (auto& unused : loader) {
    (void)unused;
    pair.train(2, 3);
  }
  // Two windows, of 4 and of 2 micro-batches: the mean of each is the gradient.
  CHECK(pair.one->w.item<float>() == Approx(-4));
  CHECK(pair.two->w.item<float>() == Approx(-6));
}

TEST_CASE("a model that takes two steps in the short window is corrected in both") {
  Single<fp32, accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, data_loader(std::vector<at::Tensor>(1, value(0)), {.batch_size = 1}));
  for (auto& unused : loader) {
    (void)unused;
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      for (int i = 0; i < 2; ++i) {
        accelerator.backward(model(value(2)));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  }
  CHECK(net->w.item<float>() == Approx(-4));
}

TEST_CASE("fp16: clipping one model leaves the other's loss scale alone") {
  AcceleratorOptions options;
  options.grad_scaler.init_scale = 65536;
  Single<fp16, accumulate<1>> accelerator(options);
  Pair pair(accelerator);
  pair.train(2, 3, 1.0);
  CHECK(pair.one->w.item<float>() == Approx(-1).epsilon(1e-5));
  CHECK(pair.two->w.item<float>() == Approx(-3));
  pair.train(0.5, std::numeric_limits<double>::infinity(), 1.0);
  CHECK(pair.one->w.item<float>() == Approx(-1.5).epsilon(1e-5));
  CHECK(pair.two->w.item<float>() == Approx(-3));
  CHECK(pair.second.step_was_skipped());
}

TEST_CASE(
    "a second count in one micro-batch of several is refused; alone each has its own weight") {
  const auto twice = [](auto accelerator) {
    auto net = std::make_shared<Weight>();
    auto model = accelerator.prepare(net);
    accelerator.accumulate(model, [&] {
      accelerator.backward(model(value(10)), 10);
      accelerator.backward(model(value(60)), 30);
    });
    return net->w.grad().template item<float>();
  };
  CHECK(twice(Single<fp32, accumulate<1>>()) == 3);
  CHECK_THROWS_WITH(twice(Single<fp32, accumulate<2>>()), ContainsSubstring("a second loss"));
}

TEST_CASE("a count that is no whole number is refused") {
  Single<fp32, accumulate<1>> accelerator;
  auto model = accelerator.prepare(std::make_shared<Weight>());
  CHECK_THROWS_WITH(accelerator.backward(model(value(1)), torch::tensor(0.5)),
                    ContainsSubstring("of type Float"));
  CHECK_THROWS_WITH(accelerator.backward(model(value(1)), torch::tensor({1, 2})),
                    ContainsSubstring("2 elements"));
}

TEST_CASE("the steps of the next window do not change the one that has closed") {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 2;
  Single<fp32, accumulate<dynamic>> accelerator(options);
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < 2; ++i)
    accelerator.accumulate(model, [&, &model = model] { accelerator.backward(model(value(1))); });
  accelerator.set_gradient_accumulation_steps(8);
  optimizer.step();
  optimizer.zero_grad();
  CHECK(net->w.item<float>() == -1);
  CHECK(accelerator.gradient_accumulation_steps() == 8);
}

TEST_CASE("a backward outside of accumulate, after a short window, is its own window") {
  Single<fp32, accumulate<4>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, data_loader(std::vector<at::Tensor>(1, value(0)), {.batch_size = 1}));
  for (auto& unused : loader) {
    (void)unused;
    accelerator.accumulate(model, [&, &model = model] { (void)model(value(1)); });
  }
  accelerator.backward(model(value(1)));
  optimizer.step();
  CHECK(net->w.item<float>() == -1);
}

TEST_CASE("a number of steps beside a policy that has its own is refused") {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 4;
  CHECK_THROWS_WITH((Single<fp32, accumulate<1>>(options)), ContainsSubstring("use accumulate<4>"));
  CHECK_NOTHROW(Single<fp32, accumulate<4>>(options));
}

TEST_CASE("autocast() under plain fp32 keeps what the caller has switched on") {
  Single<fp32, accumulate<1>> accelerator;
  const auto x = torch::ones({2, 2});
  const AutocastScope outer(c10::kCPU, torch::kBFloat16);
  {
    const auto scope = accelerator.autocast();
    CHECK(torch::mm(x, x).scalar_type() == torch::kBFloat16);
  }
  {
    const auto scope = accelerator.autocast(false);
    CHECK(torch::mm(x, x).scalar_type() == torch::kFloat);
  }
  CHECK(torch::mm(x, x).scalar_type() == torch::kBFloat16);
}

TEST_CASE("fp32 masters follow weights that are written into the model") {
  Single<with_masters<bf16_true>, accumulate<1>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(model(value(1)));
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  {
    const torch::NoGradGuard no_grad;
    net->w.fill_(8);
  }
  step();
  CHECK(net->w.item<float>() == 7);
}

TEST_CASE("fp16: a group added after prepare is unscaled with the others") {
  Single<fp16, accumulate<1>> accelerator;
  auto one = std::make_shared<Weight>(), two = std::make_shared<Weight>();
  torch::optim::SGD sgd(one->parameters(), 1.0);
  auto [a, b, optimizer] = accelerator.prepare(one, two, sgd);
  sgd.add_param_group(torch::optim::OptimizerParamGroup(
      two->parameters(), std::make_unique<torch::optim::SGDOptions>(1.0)));
  accelerator.accumulate(a, b, [&, &a = a, &b = b, &optimizer = optimizer] {
    accelerator.backward(0.5 * (a(value(1)) + b(value(1))));
    optimizer.step();
  });
  CHECK(one->w.item<float>() == -0.5f);
  CHECK(two->w.item<float>() == -0.5f);
}

TEST_CASE("fp16: a backward onto gradients that were unscaled is refused before the step") {
  Single<fp16, accumulate<1>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(model(value(1)));
    accelerator.clip_grad_norm_(model, 1.0);
    CHECK_THROWS_WITH(accelerator.backward(model(value(1))), ContainsSubstring("would add to"));
    optimizer.zero_grad();
    accelerator.backward(model(value(2)));  // cleared, they are new
    optimizer.step();
    accelerator.backward(model(value(1)));  // what this adds is for zero_grad to drop
    CHECK_THROWS_WITH(optimizer.step(), ContainsSubstring("zero_grad between"));
    optimizer.zero_grad();
  });
  CHECK(net->w.item<float>() == -2);
}

TEST_CASE("a short window: a backward onto gradients that were corrected is refused") {
  Single<fp32, accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, data_loader(std::vector<at::Tensor>(1, value(0)), {.batch_size = 1}));
  for (auto& unused : loader) {
    (void)unused;
    accelerator.accumulate(model, [&, &model = model] {
      accelerator.backward(model(value(1)));
      accelerator.clip_grad_norm_(model, 10.0);
      CHECK_THROWS_WITH(accelerator.backward(model(value(1))), ContainsSubstring("would add to"));
    });
  }
}

TEST_CASE("a parameter of two groups, or of two optimizers that scale, is refused") {
  Single<fp16, accumulate<1>> scaling;
  Single<fp32, accumulate<1>> plain;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD one(net->parameters(), 1.0), two(net->parameters(), 1.0);
  (void)scaling.prepare(net, one);
  CHECK_THROWS_WITH(scaling.prepare(two), ContainsSubstring("two optimizers share parameters"));
  (void)plain.prepare(net, one);
  CHECK_NOTHROW(plain.prepare(two));
  one.add_param_group(torch::optim::OptimizerParamGroup(
      net->parameters(), std::make_unique<torch::optim::SGDOptions>(1.0)));
  CHECK_THROWS_WITH(plain.prepare(one), ContainsSubstring("parameter group 1"));
}

TEST_CASE("a micro-batch that throws before its backward is not counted") {
  Single<fp32, accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto batch = [&, &model = model, &optimizer = optimizer](bool fails) {
    accelerator.accumulate(model, [&] {
      if (fails) throw std::runtime_error("bad sample");
      accelerator.backward(model(value(1)));
      optimizer.step();
    });
  };
  CHECK_THROWS(batch(true));
  CHECK(accelerator.sync_gradients());  // no window is open
  batch(false);
  CHECK_THROWS(batch(true));
  CHECK_FALSE(accelerator.sync_gradients());
  batch(false);
  CHECK(net->w.item<float>() == -1);
}

TEST_CASE("clipping to a norm that is none, and numbers that no scaler can start from") {
  Single<fp32, accumulate<1>> accelerator;
  auto model = accelerator.prepare(std::make_shared<Weight>());
  for (const double bad : {-1.0, std::nan("")}) {
    CHECK_THROWS_WITH(accelerator.clip_grad_norm_(model, bad), ContainsSubstring("norm of"));
    CHECK_THROWS_WITH(accelerator.clip_grad_value_(model, bad), ContainsSubstring("values of at"));
  }
  CHECK_THROWS_WITH(accelerator.clip_grad_norm_(model, 1.0, std::nan("")),
                    ContainsSubstring("no norm of type"));
  CHECK_THROWS_WITH(accelerator.grad_norm(model, std::nan("")),
                    ContainsSubstring("no norm of type"));
  for (const double scale : {std::numeric_limits<double>::infinity(), 1e40, 1e-46, std::nan("")}) {
    AcceleratorOptions options;
    options.grad_scaler.init_scale = scale;
    CHECK_THROWS_WITH((Single<fp16, accumulate<1>>(options)), ContainsSubstring("init_scale"));
  }
}

TEST_CASE("two models with counts of their own: an accelerator each, one window in the other") {
  Single<fp32, accumulate<2>> outer, inner;
  auto a = std::make_shared<Weight>(), b = std::make_shared<Weight>();
  torch::optim::SGD sgd_a(a->parameters(), 1.0), sgd_b(b->parameters(), 1.0);
  auto [model_a, optimizer_a] = outer.prepare(a, sgd_a);
  auto [model_b, optimizer_b] = inner.prepare(b, sgd_b);
  for (const auto& [items_a, items_b] : {std::pair(1, 2), std::pair(3, 2)})
    outer.accumulate(model_a,
                     [&, &model_a = model_a, &model_b = model_b, &optimizer_a = optimizer_a,
                      &optimizer_b = optimizer_b, items_a = items_a, items_b = items_b] {
                       outer.backward(model_a(value(8)), items_a);
                       optimizer_a.step();
                       optimizer_a.zero_grad();
                       inner.accumulate(model_b, [&] {
                         inner.backward(model_b(value(8)), items_b);
                         optimizer_b.step();
                         optimizer_b.zero_grad();
                       });
                     });
  CHECK(a->w.item<float>() == -4);  // 16 over 4 items
  CHECK(b->w.item<float>() == -4);
}

TEST_CASE("a count beyond 64 bits is refused") {
  Single<fp32, accumulate<1>> accelerator;
  auto model = accelerator.prepare(std::make_shared<Weight>());
  CHECK_THROWS_WITH(accelerator.backward(model(value(1)), std::numeric_limits<uint64_t>::max()),
                    ContainsSubstring("18446744073709551615 items"));
}
