// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Every schedule against PyTorch's and transformers' values over 1,000 steps, from
// tests/golden/schedules/values.json (docs/golden.md says how it is made).
#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>

using namespace accel;
using nlohmann::json;

namespace {

using torch::optim::Optimizer;

const json& golden() {
  static const json file =
      json::parse(std::ifstream(ACCEL_SOURCE_DIR "/tests/golden/schedules/values.json"));
  return file;
}

template <class Own, class Options>
std::unique_ptr<Optimizer> two_groups(const Options& options) {
  const auto rates = golden()["rates"].get<std::vector<double>>();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    auto own = std::make_unique<Options>(options);
    own->lr(rate);
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})}, std::move(own));
  }
  return std::make_unique<Own>(groups, options);
}

std::unique_ptr<Optimizer> sgd() {
  return two_groups<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

double metric(int64_t t) {
  return 10.0 / static_cast<double>(1 + t) + static_cast<double>((t * 7919) % 101) / 1000.0;
}

double momentum_of(const torch::optim::OptimizerOptions& options) {
  if (const auto* own = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return std::get<0>(own->betas());
  return dynamic_cast<const torch::optim::SGDOptions&>(options).momentum();
}

/// Takes the next step of some schedule.
using Stepper = std::function<void(int64_t)>;
using Make = std::function<Stepper(Optimizer&)>;

/// A case: how the schedule of that name is made here.
template <class Made>
Make made(Made make) {
  return [make](Optimizer& optimizer) -> Stepper {
    auto schedule = make(optimizer);
    if constexpr (StepsOnMetric<decltype(schedule)>)
      return [schedule](int64_t t) mutable { schedule.step(metric(t)); };
    else
      return [schedule](int64_t) mutable { schedule.step(); };
  };
}

template <class Kind, class Rule>
Make bound(Rule rule) {
  return made([rule](Optimizer& o) { return Kind(o, rule); });
}

Make by_name(const char* name, std::optional<int64_t> warmup = {},
             std::optional<int64_t> total = {}, SchedulerOptions options = {}) {
  return made([=](Optimizer& o) { return get_scheduler(name, o, warmup, total, options); });
}

double of(int64_t t) { return static_cast<double>(t); }

const std::map<std::string, Make> cases{
    {"lambda", bound<LambdaLR>(LambdaRule([](int64_t t) { return std::pow(0.95, of(t) / 10); }))},
    {"lambda_per_group",
     bound<LambdaLR>(LambdaRule{[](int64_t t) { return 1 / of(1 + t); },
                                [](int64_t t) { return std::pow(0.999, of(t)); }})},
    {"multiplicative",
     bound<MultiplicativeLR>(MultiplicativeRule([](int64_t t) { return 1 - 1 / of(t + 10); }))},
    {"step", bound<StepLR>(StepRule{.step_size = 30, .gamma = 0.7})},
    {"multi_step",
     bound<MultiStepLR>(MultiStepRule{.milestones = {700, 3, 20, 20, 55}, .gamma = 0.3})},
    {"constant", bound<ConstantLR>(ConstantRule{.factor = 0.3, .total_iters = 40})},
    {"linear",
     bound<LinearLR>(LinearRule{.start_factor = 0.1, .end_factor = 0.9, .total_iters = 300})},
    {"linear_to_zero",
     bound<LinearLR>(LinearRule{.start_factor = 1, .end_factor = 0, .total_iters = 700})},
    {"exponential", bound<ExponentialLR>(ExponentialRule{.gamma = 0.99})},
    {"polynomial", bound<PolynomialLR>(PolynomialRule{.total_iters = 900, .power = 2.5})},
    {"cosine", bound<CosineAnnealingLR>(CosineAnnealingRule{.T_max = 1000})},
    {"cosine_there_and_back",
     bound<CosineAnnealingLR>(CosineAnnealingRule{.T_max = 70, .eta_min = 1e-4})},
    {"warm_restarts", bound<CosineAnnealingWarmRestarts>(
                          CosineAnnealingWarmRestartsRule{.T_0 = 90, .eta_min = 1e-4})},
    {"warm_restarts_longer",
     bound<CosineAnnealingWarmRestarts>(CosineAnnealingWarmRestartsRule{.T_0 = 15, .T_mult = 2})},
    {"one_cycle", bound<OneCycleLR>(OneCycleRule{.max_lr = {0.5, 0.02}, .total_steps = 1000})},
    {"one_cycle_linear", bound<OneCycleLR>(OneCycleRule{.max_lr = 0.5,
                                                        .total_steps = 1000,
                                                        .pct_start = 0.25,
                                                        .anneal_strategy = Anneal::linear,
                                                        .base_momentum = {0.7, 0.8},
                                                        .max_momentum = 0.9,
                                                        .div_factor = 10,
                                                        .final_div_factor = 100})},
    {"one_cycle_three_phases",
     bound<OneCycleLR>(
         OneCycleRule{.max_lr = 0.5, .total_steps = 1010, .pct_start = 0.4, .three_phase = true})},
    {"one_cycle_adamw", bound<OneCycleLR>(OneCycleRule{.max_lr = 0.5, .total_steps = 1000})},
    {"cyclic", bound<CyclicLR>(CyclicRule{.base_lr = {0.01, 0.001},
                                          .max_lr = {0.2, 0.05},
                                          .step_size_up = 40,
                                          .step_size_down = 60})},
    {"cyclic_halved",
     bound<CyclicLR>(CyclicRule{
         .base_lr = 0.01, .max_lr = 0.2, .step_size_up = 45, .mode = Cycle::triangular2})},
    {"cyclic_range", bound<CyclicLR>(CyclicRule{.base_lr = 0.01,
                                                .max_lr = 0.2,
                                                .step_size_up = 45,
                                                .mode = Cycle::exp_range,
                                                .gamma = 0.997})},
    {"sequential",
     bound<SequentialLR>(SequentialRule{
         .rules = {ConstantRule{.factor = 0.1, .total_iters = 20}, ExponentialRule{.gamma = 0.9},
                   StepRule{.step_size = 7, .gamma = 0.5},
                   CosineAnnealingWarmRestartsRule{.T_0 = 30}},
         .milestones = {20, 45, 200}})},
    {"warmup_cosine",
     bound<SequentialLR>(with_warmup(CosineAnnealingRule{.T_max = 960, .eta_min = 1e-5}, 40))},
    {"warmup_polynomial",
     bound<SequentialLR>(with_warmup(PolynomialRule{.total_iters = 900}, 33, 0.2))},
    {"warmup_multi_step",
     bound<SequentialLR>(with_warmup(MultiStepRule{.milestones = {10, 500}}, 33, 0.2))},
    {"chained", bound<ChainedScheduler>(ChainedRule{{ConstantRule{.factor = 0.1, .total_iters = 20},
                                                     ExponentialRule{.gamma = 0.99}}})},
    {"chained_cosine",
     bound<ChainedScheduler>(ChainedRule{{LinearRule{.start_factor = 0.1, .total_iters = 60},
                                          CosineAnnealingRule{.T_max = 1000},
                                          StepRule{.step_size = 100, .gamma = 0.9}}})},
    {"plateau", bound<ReduceLROnPlateau>(PlateauOptions{.factor = 0.5, .patience = 5})},
    {"plateau_cooldown",
     bound<ReduceLROnPlateau>(PlateauOptions{.factor = 0.7,
                                             .patience = 3,
                                             .threshold = 0.01,
                                             .threshold_mode = ThresholdMode::abs,
                                             .cooldown = 10,
                                             .min_lr = {1e-3, 1e-5}})},
    {"plateau_max", bound<ReduceLROnPlateau>(PlateauOptions{.mode = PlateauMode::max,
                                                            .factor = 0.9,
                                                            .patience = 8,
                                                            .threshold = 0.05,
                                                            .cooldown = 2,
                                                            .min_lr = 1e-4,
                                                            .eps = 1e-5})},
    {"plateau_max_abs",
     bound<ReduceLROnPlateau>(PlateauOptions{.mode = PlateauMode::max,
                                             .factor = 0.9,
                                             .patience = 12,
                                             .threshold = 0.05,
                                             .threshold_mode = ThresholdMode::abs})},
    {"transformers_constant", by_name("constant")},
    {"transformers_constant_with_warmup", by_name("constant_with_warmup", 30)},
    {"transformers_linear", by_name("linear", 100, 900)},
    {"transformers_cosine", by_name("cosine", 100, 1000)},
    {"transformers_cosine_waves", by_name("cosine", 100, 900, {.num_cycles = 1.5})},
    {"transformers_cosine_with_restarts",
     by_name("cosine_with_restarts", 50, 950, {.num_cycles = 3})},
    {"transformers_polynomial", by_name("polynomial", 20, 950, {.lr_end = 1e-6, .power = 2})},
    {"transformers_inverse_sqrt", by_name("inverse_sqrt", 25)},
    {"transformers_inverse_sqrt_timescale", by_name("inverse_sqrt", 0, {}, {.timescale = 50})},
};

/// The first sampled step at which two series part, in words.
std::string difference(const std::vector<double>& ours, const json& series, const json& sum) {
  const auto near = [](double a, double b) {
    return std::abs(a - b) <= 1e-12 * std::abs(b) + 1e-16;
  };
  const auto theirs = series.get<std::vector<double>>();
  const auto sampled = golden()["sampled"].get<std::vector<size_t>>();
  for (size_t i = 0; i < sampled.size(); ++i)
    if (!near(ours[sampled[i]], theirs[i]))
      return fmt::format("step {}: {} and {}", sampled[i], ours[sampled[i]], theirs[i]);
  long double total = 0;
  for (const double value : ours) total += value;
  if (near(static_cast<double>(total), sum.get<double>())) return {};
  return fmt::format("the sums are {} and {}", static_cast<double>(total), sum.get<double>());
}

}  // namespace

TEST_CASE("schedules have PyTorch's and transformers' values over 1,000 steps, in two groups") {
  REQUIRE(golden()["cases"].size() == cases.size());
  const auto steps = golden()["steps"].get<int64_t>();
  for (const auto& [name, expected] : golden()["cases"].items()) {
    INFO(name << ": " << expected["python"]);
    REQUIRE(cases.contains(name));
    const auto optimizer = name.ends_with("adamw")
                               ? two_groups<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1))
                               : sgd();
    const auto& groups = optimizer->param_groups();
    std::vector<std::vector<double>> rates(groups.size()), momenta(groups.size());
    const Stepper step = cases.at(name)(*optimizer);
    for (int64_t t = 0; t < steps; ++t) {
      for (size_t i = 0; i < groups.size(); ++i) {
        rates[i].push_back(groups[i].options().get_lr());
        momenta[i].push_back(momentum_of(groups[i].options()));
      }
      if (t + 1 < steps) step(t);
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      CHECK(difference(rates[i], expected["lr"][i], expected["lr_sum"][i]) == "");
      if (expected.contains("momentum"))
        CHECK(difference(momenta[i], expected["momentum"][i], expected["momentum_sum"][i]) == "");
      else
        CHECK(momenta[i] == std::vector<double>(momenta[i].size(), momenta[i].front()));
    }
  }
}
