// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What is refused of a schedule, with words that say what it needs.
#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using namespace accel;
using Catch::Matchers::ContainsSubstring;

namespace {

torch::optim::OptimizerParamGroup group(double lr) {
  return {{torch::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(lr)};
}

}  // namespace

TEST_CASE("a schedule that cannot be is refused with what it needs") {
  torch::optim::SGD o({group(0.1), group(0.003)}, torch::optim::SGDOptions(0.1));
  const auto rates = [&] {
    return std::vector{o.param_groups()[0].options().get_lr(),
                       o.param_groups()[1].options().get_lr()};
  };
  const auto refused = [](auto make, const char* words) {
    CHECK_THROWS_WITH(make(), ContainsSubstring(words));
  };
  refused([&] { StepLR(o, {.step_size = 0}); }, "StepLR needs a step_size of at least 1");
  refused([&] { ConstantLR(o, {.factor = 2}); }, "0 < factor <= 1");
  refused([&] { LinearLR(o, {.start_factor = 0}); }, "0 < start_factor <= 1");
  refused([&] { ExponentialLR(o, {}); }, "gamma above 0");
  refused([&] { PolynomialLR(o, {.total_iters = 0}); }, "PolynomialLR needs total_iters");
  refused([&] { CosineAnnealingLR(o, {}); }, "T_max of at least 1");
  refused([&] { CosineAnnealingWarmRestarts(o, {.T_0 = 5, .T_mult = 0}); }, "T_0 and T_mult");
  refused([&] { OneCycleLR(o, {.max_lr = 0.1}); }, "OneCycleLR needs total_steps");
  refused([&] { OneCycleLR(o, {.max_lr = {0.1}, .total_steps = 5}); },
          "max_lr lists 1 values and the optimizer has 2 parameter groups");
  refused([&] { CyclicLR(o, {.max_lr = 0.1, .step_size_down = 0}); }, "CyclicLR needs");
  refused([&] { LambdaLR(o, {[](int64_t) { return 1.0; }}); }, "lr_lambda lists 1 values");
  refused([&] { SequentialLR(o, {.rules = {StepRule{.step_size = 1}}, .milestones = {3}}); },
          "got 1 rules and 1 milestones");
  refused(
      [&] {
        SequentialLR(o, {.rules = {ExponentialRule{.gamma = 1}, ExponentialRule{.gamma = 1},
                                   ExponentialRule{.gamma = 1}},
                         .milestones = {3, 3}});
      },
      "rise from 1 or more, and got [3, 3]");
  refused([&] { SequentialLR(o, with_warmup(StepRule{.step_size = 0}, 5)); }, "StepLR needs");
  refused([&] { ChainedScheduler(o, {}); }, "at least one rule");
  refused([&] { ReduceLROnPlateau(o, {.factor = 1.0}); }, "0 <= factor < 1");
  refused([&] { ReduceLROnPlateau(o, {.min_lr = {0, 0, 0}}); }, "min_lr lists 3 values");
  refused([&] { static_cast<void>(get_scheduler("cosin", o)); },
          "no schedule named 'cosin'; use one of constant, constant_with_warmup, linear, cosine, "
          "cosine_with_restarts, polynomial, inverse_sqrt");
  refused([&] { static_cast<void>(get_scheduler("linear", o, 5)); },
          "linear needs num_training_steps;");
  refused([&] { static_cast<void>(get_scheduler("linear", o)); },
          "linear needs num_warmup_steps and num_training_steps;");
  refused([&] { static_cast<void>(get_scheduler("inverse_sqrt", o)); },
          "inverse_sqrt needs num_warmup_steps;");
  refused([&] { static_cast<void>(get_scheduler("cosine", o, 5, 4)); }, "got 4 and 5");
  refused([&] { static_cast<void>(get_scheduler("polynomial", o, 1, 4, {.lr_end = 0.1})); },
          "lr_end below the optimizer's lr");
  refused([&] { static_cast<void>(get_scheduler("inverse_sqrt", o, 0, {}, {.timescale = 0})); },
          "timescale of at least 1");
  CHECK(rates() == std::vector{0.1, 0.003});

  torch::optim::Adagrad none({torch::zeros({1})}, 0.1);
  refused([&] { OneCycleLR(none, {.max_lr = 0.1, .total_steps = 5}); },
          "no momentum to cycle; set cycle_momentum = false");
  OneCycleLR(none, {.max_lr = 0.1, .total_steps = 5, .cycle_momentum = false});

  StepLR schedule(o, {.step_size = 1});
  o.add_param_group(group(1.0));
  CHECK_THROWS_WITH(schedule.step(), ContainsSubstring("made for 2 parameter groups"));
}
