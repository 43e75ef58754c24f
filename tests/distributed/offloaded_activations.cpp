// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// offload<activations>: what autograd saves waits in files, and gradients are the same to the bit.
#include "support/offload_options.hpp"
#include "support/parameter_values.hpp"
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <csignal>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
using test::results_of_ranks;

namespace {

using Tensors = std::vector<at::Tensor>;
using Activations = on<cpu, offload<activations>>;
template <class Placement, class Backend = single, class Precision = fp32>
using With = Accelerator<Backend, Precision, accumulate<1>, Placement>;

AcceleratorOptions options() { return test::offload_options(); }

constexpr int64_t width = 160, batch = 512;        // a weight would be large enough to be moved
constexpr int64_t activation = batch * width * 4;  // bytes of one, 80 pages

/// Large activations, weights used twice, a frozen one, views, residual sums, in-place operations.
struct Net : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(width, width));
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(width, 3));
  Net() {
    for (int i = 0; i < 3; ++i)
      blocks->push_back(torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::GELU(),
                                              torch::nn::Linear(width, width)));
    for (auto& parameter : blocks[1]->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = first(x);
    torch::relu_(y);
    for (const auto& block : *blocks) y = y + block->as<torch::nn::Sequential>()->forward(y);
    y = first(y.view({2, batch / 2, width}).transpose(0, 1).reshape({batch, width}));
    return last(norm(y));
  }
};

/// Parameters after some steps.
template <class Accelerator>
Tensors train(const PartialState& state) {
  Accelerator accelerator(state, options());
  auto net = std::make_shared<Net>();
  test::fill_parameters(*net);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto seed = 10 * step + static_cast<uint64_t>(state.process_index());
    accelerator.backward(model(test::normal({batch, width}, seed)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  accelerator.free_memory();
  return test::parameter_values(*net);
}

template <class Placement, class Plain, class Backend, class Precision = fp32>
void check_same(int ranks) {
  INFO(Placement::name << ' ' << Backend::name << ' ' << Precision::name);
  const auto pairs =
      results_of_ranks<std::pair<Tensors, Tensors>>(ranks, [&](const PartialState& state) {
        auto plain = train<With<Plain, Backend, Precision>>(state);
        return std::pair(std::move(plain), train<With<Placement, Backend, Precision>>(state));
      });
  for (const auto& [plain, offloaded] : pairs) {
    REQUIRE(plain.size() == offloaded.size());
    for (size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(plain[i], offloaded[i]));
  }
}

}  // namespace

TEST_CASE("training with activations in files is the same to the bit, with every backend") {
  check_same<Activations, on<cpu>, single>(1);
  check_same<Activations, on<cpu>, ddp>(2);
  check_same<Activations, on<cpu>, sharded<zero1>>(2);
  check_same<Activations, on<cpu>, sharded<zero3>>(2);
  check_same<Activations, on<cpu>, sharded<fsdp_zero2>>(3);
}

TEST_CASE("the same with 16-bit precisions, recomputed units and the rest offloaded too") {
  check_same<Activations, on<cpu>, single, bf16>(1);
  check_same<Activations, on<cpu>, single, fp16>(1);
  check_same<Activations, on<cpu>, ddp, bf16_true>(2);
  check_same<Activations, on<cpu>, sharded<zero3>, with_masters<bf16_true>>(2);
  using Both = on<cpu, offload<activations>, recomputed<>>;
  check_same<Both, on<cpu, recomputed<>>, single>(1);
  check_same<Both, on<cpu>, sharded<zero3>>(2);
  using All = on<cpu, offload<optimizer_state, parameters, activations>>;
  check_same<All, on<cpu>, sharded<zero3>>(2);
}

TEST_CASE("a tensor that several operations save is moved once, and what waits is let go of") {
  const PartialState alone;
  With<Activations> accelerator(alone, options());
  torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::Tanh(),
                            torch::nn::Linear(width, width), torch::nn::Tanh());
  auto model = accelerator.prepare(net);
  CHECK(accelerator.offload_report().moved == 0);
  // The input; the first tanh's result, which the second layer saves too; the second one's.
  const auto x = test::normal({batch, width}, 1);
  for (int64_t step = 1; step <= 4; ++step) {
    const auto loss = model(x).sum();
    CHECK(accelerator.offload_report().moved == step * 3 * activation);
    CHECK(accelerator.offload_report().waiting == 3 * activation);
    accelerator.backward(loss);
    CHECK(accelerator.offload_report().waiting == 0);
  }
  CHECK(accelerator.offload_report().most_waiting == 3 * activation);
  // Small ones stay, and without gradients nothing is saved.
  (void)model(test::normal({8, width}, 1));
  const torch::NoGradGuard no_grad;
  (void)model(x);
  CHECK(accelerator.offload_report().moved == 12 * activation);
}

TEST_CASE("views of one memory are moved once, and weights never") {
  const PartialState alone;
  struct Views : torch::nn::Module {
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(width, width));
    torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(width, width));
    at::Tensor mask = register_buffer("mask", torch::ones({batch, width}));
    at::Tensor forward(const at::Tensor& x) {  // of three dimensions, which a layer saves as two
      const auto y = at::tanh(layer(x));
      return at::tanh(frozen(y) * mask.view({4, batch / 4, width}));
    }
  };
  With<Activations> accelerator(alone, options());
  auto net = std::make_shared<Views>();
  for (auto& parameter : net->frozen->parameters()) parameter.set_requires_grad(false);
  auto model = accelerator.prepare(net);
  const auto x = test::normal({4, batch / 4, width}, 1);
  accelerator.backward(model(x).sum());
  // The input and the two results of tanh.
  CHECK(accelerator.offload_report().moved == 3 * activation);
  // A model inside a forward of another one of the accelerator is left alone as well.
  auto inner = std::make_shared<Views>();
  auto both = accelerator.prepare(inner);
  const auto before = accelerator.offload_report().moved;
  accelerator.backward(model->forward(both(x)).sum());
  // Its result is the other one's input.
  CHECK(accelerator.offload_report().moved - before == 5 * activation);
  CHECK(accelerator.offload_report().waiting == 0);
}

TEST_CASE(
    "what waits is let go of while backward runs, also where the model is named in its line") {
  const PartialState alone;
  With<Activations> accelerator(alone, options());
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::Tanh());
  }
  auto model = accelerator.prepare(net);
  int64_t at_first_layer = -1;
  net->parameters()[0].register_hook(
      [&](const at::Tensor&) { at_first_layer = accelerator.offload_report().waiting; });
  accelerator.backward(model->forward(test::normal({batch, width}, 1)).sum());
  CHECK(at_first_layer >= 0);
  CHECK(at_first_layer <= 2 * activation);
  CHECK(accelerator.offload_report().most_waiting == 5 * activation);
}

TEST_CASE("batches of many sizes: memory of files is used again") {
  const PartialState alone;
  With<Activations> accelerator(alone, options());
  torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::Tanh());
  auto model = accelerator.prepare(net);
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int64_t bytes = 0;
    for (std::string line; std::getline(maps, line);)
      if (line.find("/offload/") != std::string::npos)
        bytes += std::stoll(line.substr(line.find('-') + 1), nullptr, 16) -
                 std::stoll(line, nullptr, 16);
    return bytes;
  };
  int64_t largest = 0;
  for (int64_t step = 0; step < 200; ++step) {
    const auto rows = 128 + (step * 37) % 385;
    accelerator.backward(model(test::normal({rows, width}, 1)).sum());
    largest = std::max(largest, rows * width * 4);
    CHECK(accelerator.offload_report().waiting == 0);
  }
  // Two tensors at a time, of any size: two of each range of an eighth, at most.
  CHECK(mappings() < 2 * 16 * largest);
}

TEST_CASE("a forward that throws, and one inside a backward, leave nothing behind") {
  const PartialState alone;
  struct Throws : torch::nn::Module {
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(width, width));
    bool throws = true;
    at::Tensor forward(const at::Tensor& x) {
      const auto y = at::tanh(layer(x));
      if (throws) throw std::runtime_error("the user's");
      return y;
    }
  };
  using Both = With<on<cpu, offload<activations>, recomputed<wrap<torch::nn::LinearImpl>>>>;
  const auto run = [&](auto& accelerator) {
    auto net = std::make_shared<Throws>();
    auto model = accelerator.prepare(net);
    const auto x = test::normal({batch, width}, 1);
    CHECK_THROWS_WITH(model(x), "the user's");
    CHECK(accelerator.offload_report().waiting == 0);
    net->throws = false;
    accelerator.backward(model(x).sum());
    CHECK(accelerator.offload_report().waiting == 0);
    const auto moved = accelerator.offload_report().moved;
    // Outside of the handle's forward nothing is moved.
    net->forward(x).sum().backward();
    CHECK(accelerator.offload_report().moved == moved);
  };
  With<Activations> first(alone, options());
  run(first);
  Both second(alone, options());
  run(second);
}

TEST_CASE("complex activations, whose conjugation is a bit of the tensor") {
  const PartialState alone;
  struct Complex : torch::nn::Module {
    at::Tensor w = register_parameter("w", test::normal({batch, width}, 2));
    at::Tensor forward(const at::Tensor& x) {
      const auto z = at::complex(x * w, w.tanh());
      return at::abs((z * z.conj()) * z.conj()).sum();
    }
  };
  const auto gradient = [&](auto&& accelerator) {
    auto net = std::make_shared<Complex>();
    auto model = accelerator.prepare(net);
    accelerator.backward(model(test::normal({batch, width}, 3)));
    return net->w.grad().clone();
  };
  CHECK(at::equal(gradient(With<Activations>(alone, options())), gradient(With<on<cpu>>(alone))));
}

TEST_CASE("recomputed units: what a unit was given waits elsewhere") {
  const PartialState alone;
  With<on<cpu, offload<activations>, recomputed<>>> accelerator(alone, options());
  auto net = std::make_shared<Net>();
  auto model = accelerator.prepare(net);
  const auto loss = model(test::normal({batch, width}, 1)).sum();
  CHECK(accelerator.recompute_report(model).recorded == 3);
  CHECK(accelerator.recompute_report(model).kept == 0);
  // The input, relu's result, which is the first block's input too, two more inputs of blocks, the
  // last sum in another order, and what the normalization was given and gave; within blocks nothing.
  CHECK(accelerator.offload_report().waiting == 7 * activation);
  accelerator.backward(loss);
  CHECK(accelerator.offload_report().waiting == 0);
}

TEST_CASE("a graph that is run twice, and one that outlives its accelerator") {
  const PartialState alone;
  at::Tensor loss, weight;
  {
    With<Activations> accelerator(alone, options());
    torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::Tanh());
    auto model = accelerator.prepare(net);
    loss = model(test::normal({batch, width}, 1)).sum();
    weight = net->parameters()[0];
  }
  loss.backward({}, /*retain_graph=*/true);
  const auto once = weight.grad().clone();
  loss.backward();
  CHECK(at::equal(weight.grad(), 2 * once));
}

TEST_CASE("what was saved and then written to is refused, as LibTorch does") {
  const PartialState alone;
  With<Activations> accelerator(alone, options());
  torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::Tanh());
  auto model = accelerator.prepare(net);
  auto result = model(test::normal({batch, width}, 1));
  result.detach().mul_(2);
  CHECK_THROWS_WITH(
      accelerator.backward(result.sum()),
      ContainsSubstring("a tensor of sizes [512, 160] that backward needs was written "
                        "to after the forward had saved it"));
}

TEST_CASE("a disk that is full: a forward says so, and units keep what they were given") {
  // A limit on the size of files stands in for it.
  struct rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const auto full = [&](auto&& run) {
    const struct rlimit tight{4096, old.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &tight);
    std::string error;
    try {
      run();
    } catch (const Error& failure) {
      error = failure.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &old);
    return error;
  };
  const PartialState alone;
  const auto x = test::normal({batch, width}, 1);
  const auto gradient = [](torch::nn::Sequential& net) { return net->parameters()[0].grad(); };
  const auto make = [] {
    torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::Tanh());
    test::fill_parameters(*net);
    return net;
  };
  auto plain = make();
  plain->forward(x).sum().backward();
  {
    With<Activations> accelerator(alone, options());
    auto net = make();
    auto model = accelerator.prepare(net);
    CHECK_THAT(full([&] { (void)model(x); }), ContainsSubstring("do not fit into offload.folder"));
    CHECK(accelerator.offload_report().waiting == 0);
    accelerator.backward(model(x).sum());
    CHECK(at::equal(gradient(net), gradient(plain)));
  }
  {
    With<on<cpu, offload<activations>, recomputed<wrap<torch::nn::LinearImpl>>>> accelerator(
        alone, options());
    auto net = make();
    auto model = accelerator.prepare(net);
    at::Tensor loss;
    CHECK(full([&] { loss = model(x).sum(); }).empty());
    accelerator.backward(loss);
    CHECK(at::equal(gradient(net), gradient(plain)));
    CHECK_THROWS_WITH(model(x), ContainsSubstring("do not fit into offload.folder"));
    CHECK(model(x).defined());  // once
    CHECK(accelerator.offload_report().waiting == 0);
  }
  ::signal(SIGXFSZ, handler);
}

TEST_CASE("activations need a folder on the CPU") {
  const PartialState alone;
  CHECK_THROWS_WITH(With<Activations>(alone), ContainsSubstring("set offload.folder to a folder"));
}
