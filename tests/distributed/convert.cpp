// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A training that changes its strategy on the way: its losses are those of one that does not.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <optional>
#include <string>
#include <vector>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
using test::errors_of_ranks;
using test::results_of_ranks;

namespace {

using Losses = std::vector<double>;

template <class Backend, class Precision = fp32, class Accumulation = accumulate<1>>
using On = Accelerator<Backend, Precision, Accumulation, on<cpu>>;

/// Its values are from a generator of its own: ranks that are threads share the default one.
struct Net : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(6, 17));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(17, 3));
  Net() {
    const torch::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(3);
    for (auto& parameter : parameters())
      parameter.copy_(torch::randn(parameter.sizes(), generator).mul_(0.4));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }
};

struct Samples {
  at::Tensor data, target;
  explicit Samples(int64_t count) {
    auto generator = at::detail::createCPUGenerator(4);
    data = torch::randn({count, 6}, generator);
    target = torch::randint(0, 3, {count}, generator);
  }
  [[nodiscard]] size_t size() const { return static_cast<size_t>(data.size(0)); }
  [[nodiscard]] torch::data::Example<> get(size_t i) const {
    return {data[static_cast<int64_t>(i)], target[static_cast<int64_t>(i)]};
  }
};

/// Trains from `loader`'s position until `losses` has `until` entries or the epoch ends.
template <class A, class Model, class Optimizer, class Loader, class Schedule>
void train(A& accelerator, Model& model, Optimizer& optimizer, Loader& loader, Schedule& schedule,
           Losses& losses, size_t until) {
  for (auto& batch : loader) {
    accelerator.accumulate(model, [&] {
      const auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
      losses.push_back(loss.template item<double>());
    });
    if (losses.size() == until) break;
  }
}

constexpr size_t steps = 12;  ///< of a rank in an epoch

/// Losses of two epochs on each rank; converted to `Second` after the micro-batch `change`, in the
/// middle of an epoch, and back after as many more.
template <class First, class Second>
std::vector<Losses> losses_of(int ranks, size_t change) {
  return results_of_ranks<Losses>(ranks, [&](const PartialState& state) {
    First first(state);
    auto net = std::make_shared<Net>();
    torch::optim::AdamW adamw(
        {torch::optim::OptimizerParamGroup({net->in->weight, net->in->bias}),
         torch::optim::OptimizerParamGroup({net->out->weight, net->out->bias},
                                           std::make_unique<torch::optim::AdamWOptions>(0.03))},
        torch::optim::AdamWOptions(0.01));
    auto [model, optimizer, loader, schedule] =
        first.prepare(net, adamw,
                      data_loader(Samples(2 * ranks * int64_t(steps)),
                                  {.batch_size = 2, .shuffle = true, .data_seed = 5}),
                      StepLR(adamw, {.step_size = 5, .gamma = 0.7}));
    Losses losses;
    if (change == 0) {
      for (int epoch = 0; epoch < 2; ++epoch)
        train(first, model, optimizer, loader, schedule, losses, 2 * steps);
      return losses;
    }
    train(first, model, optimizer, loader, schedule, losses, change);
    auto [second, handles] = first.template convert<Second>(model, optimizer, loader, schedule);
    auto& [model2, optimizer2, loader2, schedule2] = handles;
    while (losses.size() < 2 * change)
      train(second, model2, optimizer2, loader2, schedule2, losses, 2 * change);
    auto [third, last] = second.template convert<First>(model2, optimizer2, loader2, schedule2);
    auto& [model3, optimizer3, loader3, schedule3] = last;
    while (losses.size() < 2 * steps)
      train(third, model3, optimizer3, loader3, schedule3, losses, 2 * steps);
    return losses;
  });
}

void check_close(const std::vector<Losses>& one, const std::vector<Losses>& other, double by) {
  for (size_t rank = 0; rank < one.size(); ++rank) {
    REQUIRE(one[rank].size() == other[rank].size());
    for (size_t i = 0; i < one[rank].size(); ++i) {
      CAPTURE(rank, i);
      CHECK(other[rank][i] == Catch::Approx(one[rank][i]).epsilon(by));
    }
  }
}

template <class First, class Second>
void check(int ranks, double by = 1e-5) {
  const auto plain = losses_of<First, Second>(ranks, 0);
  for (const size_t change : {size_t{4}, size_t{10}})
    check_close(plain, losses_of<First, Second>(ranks, change), by);
}

}  // namespace

TEST_CASE("ddp to ZeRO-3 and back has the losses of ddp") {
  check<On<ddp>, On<sharded<zero3>>>(2);
  check<On<ddp, fp32, accumulate<2>>, On<sharded<zero3>, fp32, accumulate<2>>>(3);
}

TEST_CASE("other stages, and one process") {
  check<On<ddp>, On<sharded<zero1>>>(2);
  check<On<sharded<zero2>>, On<sharded<fsdp_zero2>>>(2);
  check<On<single>, On<ddp>>(1);
  check<On<single>, On<sharded<zero3>>>(1);
}

TEST_CASE("fp32 copies of 16-bit parameters keep their bits") {
  using Masters = with_masters<bf16_true>;
  check<On<sharded<zero3>, Masters>, On<sharded<zero2>, Masters>>(2);
  // With ddp gradients are in 16 bit, so that losses differ; the copies and the averages do not.
  using Tensors = std::vector<at::Tensor>;
  const auto pairs =
      results_of_ranks<std::pair<Tensors, Tensors>>(2, [](const PartialState& state) {
        On<ddp, Masters> first(state);
        auto net = std::make_shared<Net>();
        torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
        auto [model, optimizer] = first.prepare(net, adamw);
        first.backward(model(torch::ones({2, 6})).square().sum());
        optimizer.step();
        optimizer.zero_grad();
        const auto held = [&] {
          Tensors tensors;
          for (const auto& own : adamw.param_groups()[0].params()) {
            const auto& state_of = static_cast<torch::optim::AdamWParamState&>(
                *adamw.state().at(own.unsafeGetTensorImpl()));
            for (const auto& each : {own.detach(), state_of.exp_avg(), state_of.exp_avg_sq()})
              tensors.push_back(each.clone());
          }
          return tensors;
        };
        auto before = held();
        auto [second, handles] = first.convert<On<sharded<zero3>, Masters>>(model, optimizer);
        auto& [model2, optimizer2] = handles;
        auto [third, last] = second.template convert<On<ddp, Masters>>(model2, optimizer2);
        return std::pair(std::move(before), held());
      });
  for (const auto& [before, after] : pairs) {
    REQUIRE(before.size() == 12);
    REQUIRE(after.size() == 12);
    for (size_t i = 0; i < before.size(); ++i) {
      CHECK(before[i].scalar_type() == at::kFloat);
      CHECK(at::equal(before[i], after[i]));
    }
  }
}

TEST_CASE("the loss scale goes on") {
  check<On<ddp, fp16>, On<sharded<zero3>, fp16>>(2, 1e-3);
  CHECK(results_of_ranks<double>(2, [](const PartialState& state) {
          On<ddp, fp16> first(state, {.grad_scaler = {.init_scale = 1024}});
          auto [second, none] = first.convert<On<sharded<zero2>, fp16>>();
          static_assert(std::tuple_size_v<decltype(none)> == 0);
          return second.scaler().get_scale();
        }) == std::vector<double>{1024, 1024});
}

TEST_CASE("another precision is cast to, and has the bits that there are") {
  // 1 + 2^-12 is no bfloat16.
  using Values = std::vector<float>;
  const Values expected(3, 1 + 0x1p-12F);
  CHECK(results_of_ranks<Values>(2, [](const PartialState& state) {
          auto net =
              std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(3, 1).bias(false));
          {
            const torch::NoGradGuard no_grad;
            net->weight.fill_(1 + 0x1p-12);
          }
          torch::optim::SGD sgd(net->parameters(), 1.0);
          On<ddp> first(state);
          auto [model, optimizer] = first.prepare(net, sgd);
          auto [narrow, handles] =
              first.convert<On<sharded<zero3>, with_masters<bf16_true>>>(model, optimizer);
          auto& [model2, optimizer2] = handles;
          if (net->weight.scalar_type() != at::kBFloat16) return Values{};
          auto [wide, last] = narrow.template convert<On<ddp>>(model2, optimizer2);
          const auto weight = net->weight.detach();
          const auto* data = weight.const_data_ptr<float>();
          return Values(data, data + 3);
        }) == std::vector<Values>{expected, expected});
}

TEST_CASE("an optimizer's state comes along from every precision to every other") {
  const std::vector<bool> both{true, true};
  const auto with_all = [&]<class First>(std::type_identity<First>) {
    const auto check = [&]<class Second>(std::type_identity<Second>) {
      INFO(First::PrecisionType::name << " to " << Second::PrecisionType::name);
      CHECK(results_of_ranks<bool>(2, [](const PartialState& state) {
              First first(state);
              auto net = std::make_shared<Net>();
              torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
              auto [model, optimizer] = first.prepare(net, adamw);
              const auto step = [](auto& accelerator, auto& with, auto& stepped) {
                accelerator.backward(with(torch::ones({2, 6})).square().sum());
                stepped.step();
                stepped.zero_grad();
              };
              step(first, model, optimizer);
              auto [second, handles] = first.template convert<Second>(model, optimizer);
              auto& [model2, optimizer2] = handles;
              step(second, model2, optimizer2);
              second.free_memory();
              return adamw.state().size() == 4 &&
                     net->in->weight.isfinite().all().template item<bool>();
            }) == both);
    };
    check(std::type_identity<On<ddp, bf16_true>>());
    check(std::type_identity<On<sharded<zero3>, with_masters<bf16_true>>>());
    check(std::type_identity<On<sharded<zero2>>>());
    check(std::type_identity<On<ddp, with_masters<bf16_true>>>());
  };
  with_all(std::type_identity<On<ddp>>());
  with_all(std::type_identity<On<ddp, with_masters<bf16_true>>>());
  with_all(std::type_identity<On<sharded<zero3>, bf16_true>>());
}

TEST_CASE("what the other strategy refuses is whole afterwards, with its values and state") {
  struct Mine : torch::optim::SGD {
    using SGD::SGD;
  };
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    On<ddp> first(state);
    auto net = std::make_shared<Net>();
    Mine mine(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [model, optimizer] = first.prepare(net, mine);
    first.backward(model(torch::ones({2, 6})).square().sum());
    optimizer.step();
    optimizer.zero_grad();
    const auto before = net->in->weight.detach().clone();
    std::string why;
    try {
      (void)first.convert<On<sharded<zero3>>>(model, optimizer);
    } catch (const Error& error) {
      why = error.what();
    }
    if (!at::equal(net->in->weight.detach(), before)) throw std::runtime_error("values are lost");
    if (mine.state().size() != 4) throw std::runtime_error("state is lost");
    auto [again, stepping] = first.prepare(net, mine);
    first.backward(again(torch::ones({2, 6})).square().sum());
    stepping.step();
    throw std::runtime_error(why);
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("cannot be split over the ranks"));
}

TEST_CASE("weights that are loaded right after converting to fp32 copies count") {
  using Masters = with_masters<bf16_true>;
  CHECK(results_of_ranks<float>(2, [](const PartialState& state) {
          On<sharded<zero3>, Masters> first(state);
          auto net = std::make_shared<Net>();
          torch::optim::SGD sgd(net->parameters(), 1.0);
          auto [model, optimizer] = first.prepare(net, sgd);
          auto [second, handles] = first.convert<On<ddp, Masters>>(model, optimizer);
          auto& [model2, optimizer2] = handles;
          {
            const torch::NoGradGuard no_grad;
            net->out->bias.fill_(3);
          }
          second.backward(model2(torch::ones({2, 6})).sum() * 0);
          optimizer2.step();
          return net->out->bias[0].template item<float>();
        }) == std::vector<float>{3, 3});
}

TEST_CASE("values that were registered and the number of accumulation steps go on") {
  On<single, fp32, accumulate<dynamic>> first({.gradient_accumulation_steps = 2});
  first.set_gradient_accumulation_steps(3);
  int registered = 7;
  first.register_for_checkpointing("mine",
                                   {[&] { return nlohmann::json(registered); },
                                    [&](const nlohmann::json& value) { registered = value; }});
  auto [second, none] = first.convert<On<sharded<zero3>, fp32, accumulate<dynamic>>>();
  CHECK(second.gradient_accumulation_steps() == 3);
  CHECK_THROWS_WITH(second.register_for_checkpointing("mine", {}), ContainsSubstring("mine"));
}

TEST_CASE("converting inside a window or a loop is refused, and changes nothing") {
  On<single, fp32, accumulate<2>> accelerator;
  auto net = std::make_shared<Net>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, data_loader(Samples(48), {.batch_size = 24}));
  using Other = On<sharded<zero3>, fp32, accumulate<2>>;
  const auto micro_batch = [&, &model = model](const at::Tensor& data) {
    accelerator.accumulate(model, [&] { accelerator.backward(model(data).sum()); });
  };
  int batches = 0;
  for (auto& batch : loader) {
    micro_batch(batch.data);
    CHECK_THROWS_WITH(
        accelerator.convert<Other>(model, optimizer, loader),
        ContainsSubstring(++batches == 1 ? "convert inside an accumulation window (1 of 2"
                                         : "convert inside a loop over a prepared loader"));
  }
  CHECK(batches == 2);
  CHECK(net->in->weight.grad().defined());
  auto [next, handles] = accelerator.convert<Other>(model, optimizer, loader);
  CHECK(std::get<0>(handles).unwrap() == net);
}
