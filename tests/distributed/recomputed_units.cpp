// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// recomputed<Units>: modules that know nothing of it have the gradients that they have without it, to
// the bit, and hold less between forward and backward.
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
using test::results_of_ranks;
namespace nn = torch::nn;

namespace {

using Plain = on<cpu>;
using Again = on<cpu, recomputed<>>;
template <class Backend, class Placement, class Precision = fp32>
using With = Accelerator<Backend, Precision, accumulate<1>, Placement>;

/// What blocks of networks consist of: attention, normalizations, in-place operations, views, random
/// numbers.
struct AttentionImpl : nn::Module {
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  nn::Linear qkv = register_module("qkv", nn::Linear(8, 24));
  nn::Linear out = register_module("out", nn::Linear(8, 8));
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.3));
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm(x)).view({x.size(0), x.size(1), 3, 2, 4}).unbind(2);
    auto y = at::scaled_dot_product_attention(parts[0].transpose(1, 2), parts[1].transpose(1, 2),
                                              parts[2].transpose(1, 2));
    y = out(y.transpose(1, 2).reshape_as(x));
    return dropout(torch::gelu(y)) + x;
  }
};
TORCH_MODULE(Attention);

struct ConvolutionImpl : nn::Module {
  nn::Conv1d conv = register_module("conv", nn::Conv1d(nn::Conv1dOptions(5, 5, 3).padding(1)));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(5));
  at::Tensor forward(const at::Tensor& x) {
    auto y = norm(conv(x)).mul_(0.5).relu_();
    auto mask = torch::empty_like(y).bernoulli_(0.7);
    y = y * mask;
    return y.clone().add_(x) + torch::cat({x, y}, 0).chunk(2)[1];
  }
};
TORCH_MODULE(Convolution);

struct RecurrentImpl : nn::Module {
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 8).batch_first(true)));
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(lstm(x)).tanh() + x; }
};
TORCH_MODULE(Recurrent);

/// Draws nothing, and uses a weight once: ranks that are threads share the default generator and
/// autocast's cache of cast weights.
struct ResidualImpl : nn::Module {
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  nn::Linear up = register_module("up", nn::Linear(8, 20));
  nn::Linear down = register_module("down", nn::Linear(20, 8));
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
};
TORCH_MODULE(Residual);

template <class Block>
struct Stack : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(8, 8));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList(Block(), Block(), Block()));
  nn::Linear head = register_module("head", nn::Linear(8, 3));
  at::Tensor forward(const at::Tensor& x) {
    auto y = in(x);
    for (const auto& block : *blocks) y = block->as<typename Block::ContainedType>()->forward(y);
    return head(y);
  }
};

struct Outcome {
  std::vector<at::Tensor> values;  ///< loss, gradients, buffers
  RecomputeReport report{};
};

/// Two steps of a model, from the same values and random numbers each time.
template <class Accelerator, class Net>
Outcome train(Accelerator& accelerator, int64_t shift = 0) {
  auto net = std::make_shared<Net>();
  test::fill_parameters(*net);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  Outcome outcome;
  torch::manual_seed(6);
  for (int step = 0; step < 2; ++step) {
    const auto x = torch::arange(4 * 5 * 8, torch::kFloat).add(double(shift)).mul(0.37).sin();
    const auto loss = model(x.view({4, 5, 8})).square().mean();
    accelerator.backward(loss);
    outcome.values.push_back(loss.detach().clone());
    for (const auto& parameter : net->parameters())
      outcome.values.push_back(parameter.grad().detach().clone());
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& buffer : net->buffers()) outcome.values.push_back(buffer.clone());
  if constexpr (requires { accelerator.recompute_report(model); })
    outcome.report = accelerator.recompute_report(model);
  accelerator.free_memory();
  return outcome;
}

void check_same(const Outcome& plain, const Outcome& again) {
  REQUIRE(plain.values.size() == again.values.size());
  for (size_t i = 0; i < plain.values.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(plain.values[i], again.values[i]));
  }
  CHECK(again.report.why_kept.empty());
  CHECK(again.report.kept == 0);
  CHECK(again.report.recorded == 6);  // three units, two steps
  CHECK(again.report.recomputed == 6);
}

template <class Net, class Precision>
void check_alone() {
  With<single, Plain, Precision> plain;
  With<single, Again, Precision> again;
  check_same(train<decltype(plain), Net>(plain), train<decltype(again), Net>(again));
}

}  // namespace

TEMPLATE_TEST_CASE("gradients are those of a plain model to the bit, and so are random numbers and "
                   "running statistics",
                   "", Stack<Attention>, Stack<Convolution>, Stack<Recurrent>) {
  check_alone<TestType, fp32>();
  check_alone<TestType, bf16>();
  check_alone<TestType, fp16>();
  check_alone<TestType, bf16_true>();
}

TEMPLATE_TEST_CASE("the same on two ranks, whole and sharded", "", ddp, sharded<zero3>,
                   sharded<fsdp_zero2>, sharded<zero1>) {
  const auto check = []<class Precision>(int ranks, Precision) {
    INFO(ranks << " ranks, " << Precision::name);
    const auto outcomes =
        results_of_ranks<std::pair<Outcome, Outcome>>(ranks, [](const PartialState& state) {
          With<TestType, Plain, Precision> plain(state);
          With<TestType, Again, Precision> again(state);
          using Net = Stack<Residual>;
          auto one = train<decltype(plain), Net>(plain, state.process_index());
          return std::pair(std::move(one),
                           train<decltype(again), Net>(again, state.process_index()));
        });
    for (const auto& [plain, again] : outcomes) check_same(plain, again);
  };
  for (const int ranks : {1, 2}) {
    check(ranks, fp32());
    check(ranks, bf16());
    check(ranks, fp16());
    check(ranks, bf16_true());
  }
}

namespace {

/// Keeps an eye on the memory of what is between its two layers.
struct WatchedImpl : nn::Module {
  nn::Linear up = register_module("up", nn::Linear(8, 64));
  nn::Linear down = register_module("down", nn::Linear(64, 8));
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> between{};
  std::function<at::Tensor(const at::Tensor&)> act = [](const at::Tensor& x) { return x.tanh(); };
  at::Tensor forward(const at::Tensor& x) {
    const auto y = act(up(x));
    between.emplace_back(y.storage().getWeakStorageImpl());
    return down(y);
  }
  [[nodiscard]] int alive() const {
    int count = 0;
    for (const auto& each : between) count += each.use_count() > 0;
    return count;
  }
};
TORCH_MODULE(Watched);

struct Pair : nn::Module {
  Watched first = register_module("first", Watched()),
          second = register_module("second", Watched());
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
};
using Units = on<cpu, recomputed<wrap<WatchedImpl>>>;

}  // namespace

TEST_CASE("between forward and backward a unit's inputs are held, and not what it computed") {
  for (const bool recomputes : {false, true}) {
    auto net = std::make_shared<Pair>();
    const auto check = [&](auto accelerator, int alive) {
      auto model = accelerator.prepare(net);
      const auto loss = model(torch::ones({2, 8})).sum();
      CHECK(net->first->alive() + net->second->alive() == alive);
      accelerator.backward(loss);
    };
    recomputes ? check(With<single, Units>(), 0) : check(With<single, Plain>(), 2);
    CHECK(net->first->up->weight.grad().defined());
  }
}

TEST_CASE("what cannot be computed again is kept, and the report says why") {
  auto generator = at::detail::createCPUGenerator(1);
  auto bias = torch::zeros({64});
  struct Case {
    std::function<at::Tensor(const at::Tensor&)> act;
    std::string why;
  };
  const std::vector<Case> cases{{[&](const at::Tensor& x) {
                                   const auto y = (x + bias).tanh();
                                   bias.add_(1);
                                   return y;
                                 },
                                 "an argument of aten::add was written to"},
                                {[&](const at::Tensor& x) {
                                   return x.tanh() * torch::rand_like(x).bernoulli_(0.5, generator);
                                 },
                                 "aten::bernoulli_ draws from a generator of its own"}};
  for (const auto& each : cases) {
    With<single, Units> accelerator;
    auto net = std::make_shared<Pair>();
    net->first->act = each.act;
    auto model = accelerator.prepare(net);
    const auto loss = model(torch::ones({2, 8})).sum();
    CHECK(net->first->alive() == 1);
    CHECK(net->second->alive() == 0);
    accelerator.backward(loss);
    const auto report = accelerator.recompute_report(model);
    CHECK(report.recorded == 2);
    CHECK(report.kept == 1);
    CHECK(report.recomputed == 1);
    CHECK(report.why_kept == each.why);
  }
  CHECK(bias[0].item<float>() == 1);
}

namespace {

/// Saves what it has filled through a pointer.
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    auto factor = at::empty_like(x);
    for (int64_t i = 0; i < factor.numel(); ++i) factor.data_ptr<float>()[i] = 2;
    context->save_for_backward({factor});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0]};
  }
};

struct Act {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> run;
};

/// Operations that are written in more than one way, or lie in memory in more than one.
std::vector<Act> acts() {
  const auto in_place = [](auto change) {
    return [change](const at::Tensor& x) {
      auto y = x * 0.5;
      change(y, x);
      return y;
    };
  };
  using T = at::Tensor;
  return {
      {"mul_", in_place([](T& y, const T& x) { y.mul_(x); })},
      {"div_", in_place([](T& y, const T& x) { y.div_(x.square() + 1); })},
      {"clamp_", in_place([](T& y, const T&) { y.clamp_(0.4, 0.6); })},
      {"silu_",
       [](const T& x) {
         auto y = x * 2;
         return at::silu_(y);
       }},
      {"sin_", in_place([](T& y, const T&) { y.sin_(); })},
      {"exp_", in_place([](T& y, const T&) { y.exp_(); })},
      {"foreach", in_place([](T& y, const T& x) {
         const std::vector<T> list{y};
         at::_foreach_mul_(list, std::vector<T>{x});
         at::_foreach_sin_(list);
       })},
      {"a slice", in_place([](T& y, const T& x) { y.slice(1, 3, 40).mul_(x.slice(1, 3, 40)); })},
      {"index_put_", in_place([](T& y, const T&) {
         y.index_put_({torch::tensor({0}), torch::tensor({2})}, torch::ones({}));
       })},
      {"t_",
       [](const T& x) {
         auto square = x.view({2, 8, 8}).sum(0);
         square.t_();
         return x * square.sin().reshape({1, 64});
       }},
      {"squeeze_",
       [](const T& x) {
         auto y = (x * 0.5).unsqueeze(1);
         y.squeeze_(1);
         return y.sin() * y;
       }},
      {"complex",
       [](const T& x) {
         const auto z = torch::view_as_complex(x.view({2, 32, 2}).tanh());
         return torch::view_as_real(z.conj() * z + z.exp()).reshape({2, 64});
       }},
      {"spectrum",
       [](const T& x) {
         const auto f = torch::fft::rfft(x.tanh());
         return at::real(f * f.conj()).repeat({1, 2}).slice(1, 0, 64);
       }},
      {"detach", [](const T& x) { return x.tanh() * x.sigmoid().detach() + x.data(); }},
      {"lists",
       [](const T& x) {
         auto parts = x.tanh().split(16, 1);
         std::swap(parts[0], parts[3]);
         return torch::cat(parts, 1) * std::get<0>(x.topk(64, 1));
       }},
      {"out=",
       [](const T& x) {
         const torch::NoGradGuard no_grad;
         auto scale = torch::empty({64});
         at::mul_out(scale, torch::arange(64), torch::full({64}, 0.1));
         const at::AutoGradMode grad(true);
         return x.tanh() * scale;
       }},
      {"saved through a pointer", [](const T& x) { return Doubled::apply(x.tanh()); }},
      {"noise",
       [](const T& x) {
         return x * torch::randn({64}) + torch::rand_like(x) + torch::randperm(64) * x.tanh() +
                torch::dropout(x, 0.3, true) + at::bernoulli(torch::full({64}, 0.5)) * x;
       }},
  };
}

}  // namespace

TEST_CASE("operations in place, on views, of complex numbers, in lists and with noise") {
  for (const auto& act : acts()) {
    INFO(act.name);
    const auto gradients = [&](auto accelerator) {
      auto net = std::make_shared<Pair>();
      test::fill_parameters(*net);
      net->first->act = net->second->act = act.run;
      auto model = accelerator.prepare(net);
      torch::manual_seed(4);
      // Another thread's draws are its own.
      std::jthread([] { (void)torch::rand({7}); }).join();
      accelerator.backward(model(test::normal({2, 8}, 9)).square().sum());
      std::vector<at::Tensor> all;
      for (const auto& parameter : net->parameters()) all.push_back(parameter.grad().clone());
      if constexpr (requires { accelerator.recompute_report(model); }) {
        const auto report = accelerator.recompute_report(model);
        CHECK(report.why_kept.empty());
        CHECK(report.recomputed == 2);
      }
      return all;
    };
    const auto plain = gradients(With<single, Plain>()), again = gradients(With<single, Units>());
    for (size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(plain[i], again[i]));
  }
}

TEST_CASE("a thread that draws between forward and backward, or in them, changes nothing") {
  const auto gradient = [](auto accelerator, bool draws) {
    auto net = std::make_shared<Pair>();
    test::fill_parameters(*net);
    net->first->act =
        net->second->act = [&](const at::Tensor& x) { return torch::dropout(x.tanh(), 0.5, true); };
    auto model = accelerator.prepare(net);
    torch::manual_seed(4);
    const auto loss = model(torch::ones({2, 8})).sum();
    if (draws) (void)torch::rand({1000});
    accelerator.backward(loss);
    return net->first->up->weight.grad().clone();
  };
  const auto plain = gradient(With<single, Plain>(), false);
  CHECK(at::equal(plain, gradient(With<single, Units>(), false)));
  CHECK(at::equal(plain, gradient(With<single, Units>(), true)));
}

TEST_CASE("what was written to after it was saved is refused, as by LibTorch") {
  const auto message = [](auto accelerator, const std::function<at::Tensor(const at::Tensor&)>& act,
                          const std::function<void(Pair&)>& between) -> std::string {
    auto net = std::make_shared<Pair>();
    net->first->act = act;
    auto model = accelerator.prepare(net);
    const auto loss = model(torch::ones({2, 8})).sum();
    between(*net);
    try {
      accelerator.backward(loss);
    } catch (const std::exception& failure) {
      return failure.what();
    }
    return {};
  };
  const auto tanh = [](const at::Tensor& x) { return x.tanh(); };
  const auto writes = [](const at::Tensor& x) {
    auto e = x.exp();
    e.add_(1);
    return e;
  };
  const auto scales = [](Pair& net) {
    const torch::NoGradGuard no_grad;
    net.second->down->weight.mul_(3);
  };
  const auto nothing = [](Pair&) {};
  CHECK_THAT(message(With<single, Plain>(), writes, nothing),
             ContainsSubstring("inplace operation"));
  CHECK_THAT(message(With<single, Units>(), writes, nothing),
             ContainsSubstring("sizes [2, 64] that backward needs was written to after"));
  CHECK_THAT(message(With<single, Plain>(), tanh, scales), ContainsSubstring("inplace operation"));
  CHECK_THAT(message(With<single, Units>(), tanh, scales),
             ContainsSubstring("that backward needs was written to after"));
}

TEST_CASE("a forward without backward leaves nothing behind, kept or not") {
  auto generator = at::detail::createCPUGenerator(1);
  for (const bool kept : {false, true}) {
    auto net = std::make_shared<Pair>();
    if (kept)
      net->first->act = net->second->act = [&](const at::Tensor& x) {
        return x.tanh() * torch::rand_like(x).bernoulli_(0.5, generator);
      };
    With<single, Units> accelerator;
    auto model = accelerator.prepare(net);
    (void)model(torch::ones({2, 8}));
    CHECK(net->first->alive() + net->second->alive() == 0);
    CHECK(accelerator.recompute_report(model).kept == (kept ? 2 : 0));
  }
}

TEST_CASE("memory that the program fills through a pointer is from outside") {
  const auto gradient = [](auto accelerator) {
    torch::manual_seed(3);
    auto net = std::make_shared<Pair>();
    net->first->act = [](const at::Tensor& x) {
      auto scale = torch::empty({64});
      for (int i = 0; i < 64; ++i) scale.data_ptr<float>()[i] = float(i);
      auto noise = torch::randn({64});
      noise[0].add_(1);
      return x.tanh() * scale.view({1, 64}) + noise;
    };
    auto model = accelerator.prepare(net);
    accelerator.backward(model(torch::ones({2, 8})).square().sum());
    return net->first->up->weight.grad().clone();
  };
  CHECK(at::equal(gradient(With<single, Plain>()), gradient(With<single, Units>())));
}

TEST_CASE("backward may come twice, and nothing is recorded without gradients") {
  With<single, Units> accelerator;
  auto net = std::make_shared<Pair>();
  auto model = accelerator.prepare(net);
  const auto x = torch::ones({2, 8});
  {
    const torch::NoGradGuard no_grad;
    (void)model(x);
  }
  CHECK(accelerator.recompute_report(model).recorded == 0);
  const auto loss = model(x).sum();
  accelerator.backward(loss, /*retain_graph=*/true);
  const auto once = net->first->up->weight.grad().clone();
  accelerator.backward(loss);
  CHECK(at::equal(net->first->up->weight.grad(), 2 * once));
  CHECK(accelerator.recompute_report(model).recomputed == 4);
}

TEST_CASE("several models, one inside the other's forward, and a function of the model's own") {
  With<single, Units> accelerator;
  auto outer = std::make_shared<Pair>();
  auto inner = std::make_shared<Pair>();
  auto [model, helper] = accelerator.prepare(outer, inner);
  outer->second->act = [&, &helper = helper](const at::Tensor& x) {
    return helper(x.slice(1, 0, 8)).repeat({1, 8}) + x;
  };
  const auto loss = model(torch::ones({2, 8})).sum();
  CHECK(inner->first->alive() + inner->second->alive() == 0);
  accelerator.backward(loss);
  const auto gradient = inner->first->up->weight.grad().clone();
  accelerator.free_memory();
  for (auto& parameter : outer->parameters()) parameter.mutable_grad().reset();
  for (auto& parameter : inner->parameters()) parameter.mutable_grad().reset();
  outer->second->act = [&](const at::Tensor& x) {
    return inner->forward(x.slice(1, 0, 8)).repeat({1, 8}) + x;
  };
  outer->forward(torch::ones({2, 8})).sum().backward();
  CHECK(at::equal(inner->first->up->weight.grad(), gradient));
}

TEST_CASE("an argument that was written to since forward is named") {
  With<single, Units> accelerator;
  auto net = std::make_shared<Pair>();
  auto model = accelerator.prepare(net);
  auto x = torch::ones({2, 8});
  const auto loss = model(x).sum();
  x.zero_();
  CHECK_THROWS_WITH(accelerator.backward(loss),
                    ContainsSubstring("runs aten::addmm again in backward") &&
                        ContainsSubstring("sizes [2, 8], was written to since forward"));
}

TEST_CASE("a rule that finds no unit is an error") {
  With<single, on<cpu, recomputed<wrap<nn::Conv2dImpl>>>> accelerator;
  CHECK_THROWS_AS(accelerator.prepare(std::make_shared<Pair>()), Error);
}
