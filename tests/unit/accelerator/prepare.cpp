// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What `prepare` takes and returns, and the run-time choice among compiled types.
#include "support/scratch_folder.hpp"

#include <accel/accel.hpp>
#include <accel/config/merge.hpp>
#include <accel/runtime.hpp>

#include <catch2/catch_all.hpp>

#include <fstream>
#include <memory>
#include <optional>

using namespace accel;
using Single = Accelerator<single, fp32, accumulate<1>, on<cpu>>;
using Catch::Matchers::ContainsSubstring;

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 1));
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  at::Tensor twice(const at::Tensor& x) { return 2 * layer(x); }
};
TORCH_MODULE(Net);

/// A precision of the user's own: nothing is registered anywhere.
struct bf16_reduced : bf16 {
  static constexpr std::string_view name = "bf16_reduced";
};

}  // namespace

TEST_CASE("objects come back in the order they were given, typed") {
  Single accelerator;
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto schedule = StepLR(sgd, {.step_size = 1});
  std::vector<at::Tensor> samples{torch::ones({2})};
  auto [first, loader, scheduler, model, second, other] =
      accelerator.prepare(adamw, data_loader(samples), schedule, net, sgd, 5);
  STATIC_REQUIRE(
      std::is_same_v<std::remove_reference_t<decltype(*first.operator->())>, torch::optim::AdamW>);
  STATIC_REQUIRE(
      std::is_same_v<std::remove_reference_t<decltype(*second.operator->())>, torch::optim::SGD>);
  STATIC_REQUIRE(std::is_same_v<std::remove_reference_t<decltype(*model)>, NetImpl>);
  STATIC_REQUIRE(std::is_same_v<std::remove_cvref_t<decltype(other)>, int>);
  CHECK(&first.unwrap() == &adamw);
  CHECK(&scheduler.unwrap() == &schedule);
  CHECK(loader.size() == 1);
  CHECK(other == 5);
  CHECK(model->twice(torch::ones({1, 2})).sizes() == std::vector<int64_t>{1, 1});
}

TEST_CASE("a module may be a holder, a shared pointer, a Sequential or an object") {
  Single accelerator;
  const auto x = torch::ones({1, 2});
  Net holder;
  auto pointer = std::make_shared<NetImpl>();
  torch::nn::Sequential sequential(torch::nn::Linear(2, 3), torch::nn::ReLU());
  NetImpl object;
  CHECK(accelerator.prepare(holder).unwrap() == holder.ptr());
  CHECK(accelerator.prepare(pointer).unwrap() == pointer);
  CHECK(accelerator.prepare(sequential)(x).size(1) == 3);
  CHECK(accelerator.prepare(object).unwrap().get() == &object);
  CHECK(accelerator.prepare(*pointer).unwrap() ==
        pointer);                                     // a reference to a shared object shares it
  CHECK(accelerator.prepare(Net())(x).size(1) == 1);  // a temporary is kept alive
}

TEST_CASE("preparing twice is harmless") {
  Single accelerator;
  Net net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto [model2, optimizer2] = accelerator.prepare(model, optimizer);
  auto [model3, optimizer3] = accelerator.prepare(net, sgd);
  const auto before = net->layer->bias.clone();
  accelerator.backward(model3(torch::ones({1, 2})).sum());
  optimizer2.step();
  CHECK((before - net->layer->bias).item<float>() == Catch::Approx(1.0f));
  CHECK(model2.unwrap() == net.ptr());
}

TEST_CASE("objects that replace others at the same address are taken up anew") {
  Single accelerator;
  std::optional<NetImpl> net;
  std::optional<torch::optim::SGD> sgd;
  for (int fold = 0; fold < 3; ++fold) {
    net.emplace();
    sgd.emplace(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(*net, *sgd);
    const auto before = net->layer->bias.clone();
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
    optimizer.zero_grad();
    CHECK((before - net->layer->bias).item<float>() == Catch::Approx(1.0f));
    CHECK_FALSE(net->layer->bias.grad().defined());
  }
}

TEST_CASE("a temporary module and a unique pointer are kept alive") {
  Single accelerator;
  auto model = accelerator.prepare(NetImpl());
  auto owned = accelerator.prepare(std::make_unique<NetImpl>());
  CHECK(model(torch::ones({1, 2})).size(1) == 1);
  CHECK(owned(torch::ones({1, 2})).size(1) == 1);
}

TEST_CASE("a policy of the user's own composes") {
  Accelerator<single, bf16_reduced, accumulate<1>, on<cpu>> accelerator;
  auto model = accelerator.prepare(torch::nn::Linear(2, 2));
  CHECK(model->forward(torch::ones({1, 2})).scalar_type() == torch::kBFloat16);
}

TEST_CASE("device placement can be off, and cuda without a device is a sentence") {
  AcceleratorOptions options;
  options.device_placement = false;
  Single accelerator(options), placing;
  struct OnMeta : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", torch::empty({2}, torch::kMeta));
  };
  auto elsewhere = std::make_shared<OnMeta>();
  (void)accelerator.prepare(elsewhere);
  CHECK(elsewhere->weight.is_meta());
  (void)placing.prepare_model(elsewhere, /*device_placement=*/false);
  CHECK(elsewhere->weight.is_meta());
  if (!torch::cuda::is_available())
    CHECK_THROWS_WITH((Accelerator<single, fp32, accumulate<1>, on<cuda>>()),
                      ContainsSubstring("on<cpu>"));
}

TEST_CASE("copies that do not wait are refused where batches are not copied at all") {
  Single accelerator;
  const auto data =
      data_loader(std::vector<at::Tensor>(2, torch::ones({})), {.non_blocking = true});
  CHECK_THROWS_WITH(accelerator.prepare_data_loader(data, /*device_placement=*/false),
                    ContainsSubstring("device_placement is off"));
  for (auto& batch : accelerator.prepare(data)) CHECK(batch.numel() == 1);
  AcceleratorOptions options;
  options.device_placement = false;
  Single leaving(options);
  CHECK_THROWS_WITH(leaving.prepare(data), ContainsSubstring("non_blocking"));
}

TEST_CASE("free_memory lets go of what was prepared") {
  Single accelerator;
  auto net = std::make_shared<NetImpl>();
  {
    auto model = accelerator.prepare(net);
  }
  CHECK(net.use_count() > 1);
  accelerator.free_memory();
  CHECK(net.use_count() == 1);
}

TEST_CASE("a configuration picks one of the compiled types, or the error lists them") {
  using Row1 = Accelerator<single, fp32, accumulate<dynamic>, on<cpu>>;
  using Row2 = Accelerator<ddp, bf16, accumulate<dynamic>, on<cpu>>;
  const auto pick = [](const PolicyNames& names) {
    return visit<Row1, Row2>(
        names, []<class A>(std::type_identity<A>) { return std::is_same_v<A, Row1> ? 1 : 2; });
  };
  CHECK(pick({"single", "fp32", "accumulate<4>", "on<cpu>"}) == 1);
  CHECK(pick({"ddp", "bf16", "accumulate<dynamic>", "on<cpu>"}) == 2);
  CHECK_THROWS_WITH(
      pick({"ddp", "fp16", "accumulate<4>", "on<cpu>"}),
      ContainsSubstring("fp16") && ContainsSubstring("compiled with") && ContainsSubstring("bf16"));
}

TEST_CASE("a file picks one of the compiled types, and fills its options") {
  using Row1 = Accelerator<single, fp32, accumulate<dynamic>, on<cpu>>;
  using Row2 = Accelerator<ddp, bf16, accumulate<dynamic>, on<cpu>>;
  const accel_test::ScratchFolder scratch;
  const auto picked = [&](const std::string& text) {
    std::ofstream(scratch / "accel.yaml") << text;
    const auto config =
        resolve_config({.file = scratch / "accel.yaml",
                        .environment = [](const std::string&) -> std::optional<std::string> {
                          return std::nullopt;
                        }})
            .config;
    const auto options = accelerator_options(config);
    const auto row = visit<Row1, Row2>(policy_names(config), []<class A>(std::type_identity<A>) {
      return std::is_same_v<A, Row1> ? 1 : 2;
    });
    return std::tuple(row, options.gradient_accumulation_steps, options.communicator.debug);
  };
  CHECK(picked("distributed_type: 'NO'\nuse_cpu: true\n") == std::tuple(1, 1, false));
  CHECK(picked("distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: bf16\n"
               "gradient_accumulation_steps: 4\ndebug: true\n") == std::tuple(2, 4, true));
  CHECK_THROWS_WITH(picked("distributed_type: MULTI_CPU\nnum_processes: 2\n"),
                    ContainsSubstring("compiled with"));
}

TEST_CASE("an optimizer of another type at the same address is taken up anew") {
  Single accelerator;
  Net net;
  alignas(16) std::byte place[std::max(sizeof(torch::optim::SGD), sizeof(torch::optim::AdamW))];
  auto* sgd = new (place) torch::optim::SGD(net->parameters(), 1.0);
  auto first = accelerator.prepare(*sgd);
  sgd->~SGD();
  auto* adamw = new (place) torch::optim::AdamW(net->parameters());
  auto second = accelerator.prepare(*adamw);
  net->layer->weight.mutable_grad() = torch::ones_like(net->layer->weight);
  second.step();
  CHECK(adamw->state().size() == 1);
  adamw->~AdamW();
}

TEST_CASE("an optimizer that evaluates the loss itself is refused with a sentence") {
  Single accelerator;
  Net net;
  torch::optim::LBFGS lbfgs(net->parameters());
  CHECK_THROWS_WITH(accelerator.prepare(lbfgs), ContainsSubstring("LBFGS"));
  std::unique_ptr<torch::optim::Optimizer> hidden =
      std::make_unique<torch::optim::LBFGS>(net->parameters());
  CHECK_THROWS_WITH(accelerator.prepare(std::move(hidden)), ContainsSubstring("LBFGS"));
}

TEST_CASE("processes on another device than the placement's are refused") {
  CHECK_THROWS_WITH(
      (Accelerator<single, fp32, accumulate<1>, on<cuda>>(PartialState(Communicator(), c10::kCPU))),
      ContainsSubstring("the given processes are on cpu"));
}

TEST_CASE("an object that is not there is refused with a sentence") {
  Single accelerator;
  CHECK_THROWS_WITH(accelerator.prepare(std::shared_ptr<NetImpl>()), ContainsSubstring("empty"));
  CHECK_THROWS_WITH(accelerator.prepare(Net(nullptr)), ContainsSubstring("empty"));
  CHECK_THROWS_WITH(accelerator.prepare(std::shared_ptr<torch::optim::SGD>()),
                    ContainsSubstring("empty"));
  CHECK_THROWS_WITH(accelerator.prepare(std::shared_ptr<LambdaLR>()), ContainsSubstring("empty"));
}
