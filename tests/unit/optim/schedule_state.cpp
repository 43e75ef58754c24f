// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What schedules do around their formulas: saving and resuming, skipped steps and windows, warm-up,
// rules and schedules of the user's own. Their values are tested in schedules.cpp.
#include "support/scratch_folder.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

// A schedule with a memory is no rule, so it cannot stand in a sequence.
static_assert(std::constructible_from<AnyRule, CosineAnnealingRule>);
static_assert(!std::constructible_from<AnyRule, ReduceLROnPlateau>);
static_assert(!std::constructible_from<AnyRule, StepLR>);
static_assert(LRSchedulerLike<SequentialLR> && LRSchedulerLike<ReduceLROnPlateau>);
static_assert(LRSchedulerLike<torch::optim::StepLR> && !LRSchedulerLike<torch::optim::SGD>);

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// SGD with two groups.
struct Groups {
  torch::optim::SGD own{{group(0.1), group(0.003)}, torch::optim::SGDOptions(0.1).momentum(0.9)};

  static torch::optim::OptimizerParamGroup group(double lr) {
    return {{torch::zeros({1})},
            std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(lr).momentum(0.9))};
  }
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> values;
    for (const auto& group : own.param_groups()) {
      const auto& options = dynamic_cast<const torch::optim::SGDOptions&>(group.options());
      values.insert(values.end(), {options.lr(), options.momentum()});
    }
    return values;
  }
};

double metric(int64_t t) { return std::abs(std::sin(0.7 * double(t))); }

template <class S>
void step(S& schedule) {
  if constexpr (StepsOnMetric<S>)
    schedule.step(metric(schedule.last_epoch()));
  else
    schedule.step();
}

/// Runs to step 40 without a break, and again with one at each of some steps, where the state goes
/// through its text onto a new optimizer.
template <class S, class Rule>
void resumes(const Rule& rule) {
  constexpr int64_t end = 40;
  std::vector<std::vector<double>> whole;
  Groups groups;
  S schedule(groups.own, rule);
  std::vector<std::string> states;
  for (int64_t t = 0; t <= end; ++t) {
    whole.push_back(groups.values());
    states.push_back(schedule.state().dump());
    step(schedule);
  }
  for (const int64_t at : {0, 1, 7, 8, 20, 21, 33}) {
    INFO("resumed at " << at << " from " << states[at]);
    Groups fresh;
    S resumed(fresh.own, rule);
    resumed.load_state(json::parse(states[at]));
    CHECK(resumed.last_epoch() == at);
    std::vector<std::vector<double>> rest;
    for (int64_t t = at; t <= end; ++t) {
      rest.push_back(fresh.values());
      step(resumed);
    }
    CHECK(rest == std::vector(whole.begin() + at, whole.end()));
  }
}

template <class Precision = fp32, class Accumulation = accumulate<1>>
using Single = Accelerator<single, Precision, Accumulation, on<cpu>>;

struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}));
  at::Tensor forward(const at::Tensor& x) { return w * x; }
};

}  // namespace

TEST_CASE("a schedule that is resumed goes on with equal bits") {
  resumes<LambdaLR>(LambdaRule([](int64_t t) { return std::pow(0.93, double(t)); }));
  resumes<StepLR>(StepRule{.step_size = 7, .gamma = 0.7});
  resumes<ExponentialLR>(ExponentialRule{.gamma = 0.93});
  resumes<CosineAnnealingLR>(CosineAnnealingRule{.T_max = 20, .eta_min = 1e-4});
  resumes<CosineAnnealingWarmRestarts>(CosineAnnealingWarmRestartsRule{.T_0 = 7, .T_mult = 2});
  resumes<OneCycleLR>(OneCycleRule{.max_lr = {0.5, 0.1}, .total_steps = 41});
  resumes<SequentialLR>(
      SequentialRule{.rules = {LinearRule{.total_iters = 8}, PolynomialRule{.total_iters = 20},
                               OneCycleRule{.max_lr = 0.2, .total_steps = 20}},
                     .milestones = {8, 21}});
  resumes<ChainedScheduler>(
      ChainedRule{{ConstantRule{.total_iters = 8}, CosineAnnealingRule{.T_max = 40}}});
  resumes<ReduceLROnPlateau>(
      PlateauOptions{.factor = 0.6, .patience = 2, .cooldown = 3, .min_lr = {1e-3, 1e-5}});
  resumes<ReduceLROnPlateau>(PlateauOptions{.mode = PlateauMode::max, .patience = 5});
}

TEST_CASE("a state of earlier versions, a count of steps, is taken") {
  Groups groups, others;
  const SequentialRule rule =
      with_warmup(CosineAnnealingRule{.T_max = 30, .eta_min = 1e-4}, 5, 0.1);
  SequentialLR schedule(groups.own, rule), old(others.own, rule);
  for (int t = 0; t < 17; ++t) schedule.step();
  old.load_state(json(17));
  CHECK(others.values() == groups.values());
  CHECK(old.last_epoch() == 17);
  old.load_last_epoch(0);  // and back
  CHECK(old.get_last_lr() == std::vector<double>{0.1 * 0.1, 0.003 * 0.1});
}

TEST_CASE("a damaged state is refused, and changes nothing") {
  Groups groups;
  StepLR schedule(groups.own, {.step_size = 2});
  ReduceLROnPlateau plateau(groups.own);
  const auto before = groups.values();
  for (const char* text :
       {"null", "[]", "{}", "1.5", R"({"last_epoch": 1.5, "initial_lr": [1, 1], "lr": [1, 1]})",
        R"({"last_epoch": 1, "initial_lr": [1], "lr": [1, 1]})",
        R"({"last_epoch": 1, "initial_lr": [1, 1], "lr": [1, null]})"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(schedule.load_state(json::parse(text)),
                      ContainsSubstring("no state of a schedule of 2 parameter groups"));
    CHECK_THROWS_WITH(plateau.load_state(json::parse(text)),
                      ContainsSubstring("no state of a ReduceLROnPlateau of 2 parameter groups"));
  }
  CHECK_THROWS_WITH(schedule.load_state(json(-1)), ContainsSubstring("cannot stand at step -1"));
  CHECK_THROWS_WITH(
      schedule.load_state(json{{"last_epoch", -1}, {"initial_lr", {1, 1}}, {"lr", {1, 1}}}),
      ContainsSubstring("cannot stand at step -1"));
  CHECK(groups.values() == before);
}

TEST_CASE("save_state holds schedules of steps, of a metric, and of the user's own") {
  struct Own {  // what was asked of a schedule before there was state()
    int64_t steps = 0;
    void step() { ++steps; }
    [[nodiscard]] int64_t last_epoch() const { return steps; }
    void load_last_epoch(int64_t to) { steps = to; }
  };
  accel_test::ScratchFolder scratch(accel_test::memory_folder());
  const auto prepared = [&](auto use) {
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    StepLR halving(sgd, {.step_size = 1, .gamma = 0.5});
    ReduceLROnPlateau plateau(sgd, {.patience = 0});
    Own own;
    Single<> accelerator;
    auto handles = accelerator.prepare(net, sgd, halving, plateau, own);
    use(accelerator, std::get<2>(handles), std::get<3>(handles), std::get<4>(handles));
    CHECK(halving.get_last_lr().front() == 0.125 * 0.1);
    CHECK(plateau.best() == 1.0);
    CHECK(own.steps == 3);
  };
  prepared([&](auto& accelerator, auto& halving, auto& plateau, auto& own) {
    for (const double seen : {2.0, 1.0, 1.5}) {
      halving.step();
      plateau.step(torch::tensor(seen));
      own.step();
    }
    accelerator.save_state(scratch.path() / "state");
  });
  prepared([&](auto& accelerator, auto&...) { accelerator.load_state(scratch.path() / "state"); });
}

TEST_CASE("schedules wait for windows and skipped steps; a metric of an epoch is always taken") {
  Single<fp16, accumulate<2>> accelerator;
  auto net = std::make_shared<Weight>();
  torch::optim::SGD sgd(net->parameters(), 1.0), watched({torch::zeros({1})}, 1.0);
  StepLR halving(sgd, {.step_size = 1, .gamma = 0.5});
  ReduceLROnPlateau plateau(watched, {.patience = 100});
  auto [model, optimizer, by_step, by_metric] = accelerator.prepare(net, sgd, halving, plateau);
  for (const double x : {1.0, 1.0, infinity, 1.0, 1.0, 1.0, 1.0})
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer, &by_step = by_step,
                                   &by_metric = by_metric] {
      accelerator.backward(model(torch::tensor(float(x))));
      optimizer.step();
      by_step.step();
      by_metric.step(x);
      optimizer.zero_grad();
    });
  CHECK(halving.last_epoch() == 2);  // of 3 windows and a half, one overflowed
  CHECK(plateau.last_epoch() == 2);
  by_metric.step(0.5);
  CHECK(plateau.last_epoch() == 3);
  CHECK(plateau.best() == 0.5);
}

TEST_CASE("a schedule with an end: stepping on is an error, but not by Accelerate's count") {
  const OneCycleRule rule{.max_lr = 1.0, .total_steps = 4};
  for (const bool accelerates_count : {false, true}) {
    auto w = torch::zeros({1}).requires_grad_();
    torch::optim::SGD sgd({w}, torch::optim::SGDOptions(1.0).momentum(0.9));
    Single<> accelerator({.step_scheduler_once_per_process = accelerates_count});
    auto [optimizer, schedule] = accelerator.prepare(sgd, OneCycleLR(sgd, rule));
    for (int t = 0; t < 4; ++t) schedule.step();
    if (accelerates_count)
      CHECK_NOTHROW(schedule.step());
    else
      CHECK_THROWS_WITH(schedule.step(),
                        ContainsSubstring("total_steps = 4") && ContainsSubstring("step 5"));
    CHECK(schedule->last_epoch() == 4);
  }
}

TEST_CASE("a warm-up before a plateau: two schedules on one optimizer") {
  Groups groups;
  LinearLR warmup(groups.own, {.start_factor = 0.5, .total_iters = 4});
  ReduceLROnPlateau plateau(groups.own, {.factor = 0.5, .patience = 1});
  for (int t = 0; t < 10; ++t) warmup.step();
  CHECK(groups.own.param_groups()[0].options().get_lr() == Catch::Approx(0.1));
  for (int epoch = 0; epoch < 3; ++epoch) plateau.step(1.0);
  warmup.step();  // done: it leaves the rate alone
  CHECK(groups.own.param_groups()[0].options().get_lr() == Catch::Approx(0.05));
  CHECK(groups.own.param_groups()[1].options().get_lr() == Catch::Approx(0.0015));
}

TEST_CASE("a warm-up of no steps is the rule itself") {
  Groups groups, others;
  SequentialLR with(groups.own, with_warmup(CosineAnnealingRule{.T_max = 9}, 0));
  CosineAnnealingLR without(others.own, {.T_max = 9});
  for (int t = 0; t < 12; ++t) {
    with.step();
    without.step();
    CHECK(groups.values() == others.values());
  }
}

TEST_CASE("sequences nest, and a rule may be a function of the user's own") {
  Groups groups;
  const auto countdown = [](GroupRate& group, int64_t t) {
    group.lr = group.initial_lr / double(1 + t);
  };
  SequentialLR schedule(
      groups.own,
      with_warmup(SequentialRule{.rules = {countdown, ChainedRule{{ExponentialRule{.gamma = 0.5}}}},
                                 .milestones = {3}},
                  2, 0.5));
  std::vector<double> rates;
  for (int t = 0; t < 8; ++t) {
    rates.push_back(schedule.get_last_lr().front());
    schedule.step();
  }
  const std::vector<double> expected{0.05, 0.075, 0.1, 0.05, 0.1 / 3, 0.1, 0.05, 0.025};
  for (size_t t = 0; t < rates.size(); ++t) CHECK(rates[t] == Catch::Approx(expected[t]));

  Groups others;
  Schedule own(others.own, countdown);
  own.step();
  CHECK(own.get_last_lr() == std::vector<double>{0.05, 0.0015});
}

TEST_CASE("a plateau in cooldown ignores metrics, and one that is not a number is no better") {
  Groups groups;
  ReduceLROnPlateau plateau(groups.own, {.factor = 0.5, .patience = 1, .cooldown = 2});
  for (const double seen : {1.0, std::nan(""), 2.0}) plateau.step(seen);
  CHECK(plateau.get_last_lr().front() == 0.05);
  CHECK(plateau.in_cooldown());
  plateau.step(2.0);
  plateau.step(2.0);
  CHECK_FALSE(plateau.in_cooldown());
  CHECK(plateau.num_bad_epochs() == 0);
}

TEST_CASE("rates are scaled with the global batch, once for all groups") {
  Groups linear, root;
  CHECK(scale_learning_rate(linear.own, BatchScaling::linear, 1024, 256) == 4.0);
  CHECK(scale_learning_rate(root.own, BatchScaling::square_root, 1024, 256) == 2.0);
  CHECK(StepLR(linear.own, {.step_size = 1}).get_last_lr() == std::vector<double>{0.4, 0.012});
  CHECK(StepLR(root.own, {.step_size = 1}).get_last_lr() == std::vector<double>{0.2, 0.006});
  CHECK_THROWS_WITH(scale_learning_rate(root.own, BatchScaling::linear, 0, 256),
                    ContainsSubstring("got 0 and 256"));
}
