// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Schedules on two ranks: whose steps they count, and a metric that the ranks agree on.
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <atomic>

using namespace accel;

namespace {

struct Weight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({1}));
  at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
};

}  // namespace

TEST_CASE("B06 by Accelerate's rule too, a job whose batches are split has one step") {
  for (const bool split : {false, true})
    CHECK(test::results_of_ranks<double>(2, [&](const PartialState& state) {
            Accelerator<ddp, fp32, accumulate<2>, on<cpu>> accelerator(
                state, {.step_scheduler_once_per_process = true});
            auto net = std::make_shared<Weight>();
            torch::optim::SGD sgd(net->parameters(), 0.1);
            auto samples = std::vector<at::Tensor>(16, torch::ones({}));
            auto [model, optimizer, loader, halving] = accelerator.prepare(
                net, sgd,
                data_loader(samples, {.batch_size = split ? 2 : 1, .split_batches = split}),
                StepLR(sgd, {.step_size = 1, .gamma = 0.5}));
            for (auto& batch : loader)
              accelerator.accumulate(
                  model, [&, &model = model, &optimizer = optimizer, &halving = halving] {
                    accelerator.backward(model(batch));
                    optimizer.step();
                    halving.step();
                    optimizer.zero_grad();
                  });
            return halving->get_last_lr().front();
          }) == std::vector<double>(2, split ? 0.00625 : 0.000390625));
}

TEST_CASE(
    "a schedule apart from the optimizer takes one step at each call, in a window and out of it") {
  CHECK(test::results_of_ranks<double>(2, [&](const PartialState& state) {
          Accelerator<ddp, fp32, accumulate<2>, on<cpu>> accelerator(
              state, {.step_scheduler_with_optimizer = false});
          auto net = std::make_shared<Weight>();
          torch::optim::SGD sgd(net->parameters(), 1.0);
          auto [model, optimizer, halving] =
              accelerator.prepare(net, sgd, StepLR(sgd, {.step_size = 1, .gamma = 0.5}));
          for (int micro_batch = 0; micro_batch < 3; ++micro_batch)
            accelerator.accumulate(model,
                                   [&, &model = model, &optimizer = optimizer, &halving = halving] {
                                     accelerator.backward(model(torch::ones({1})));
                                     optimizer.step();
                                     halving.step();
                                     optimizer.zero_grad();
                                   });
          return halving->get_last_lr().front();
        }) == std::vector<double>(2, 0.125));
}

TEST_CASE("a schedule counts optimizer steps, or by Accelerate's rule steps of processes") {
  for (const bool accelerates_count : {false, true}) {
    std::atomic<int> right = 0;
    test::run_ranks(2, [&](const PartialState& state) {
      Accelerator<ddp, fp32, accumulate<2>, on<cpu>> accelerator(
          state, {.step_scheduler_once_per_process = accelerates_count});
      auto net = std::make_shared<Weight>();
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      StepLR halving(sgd, {.step_size = 1, .gamma = 0.5});
      torch::optim::SGD other({torch::zeros({1})}, torch::optim::SGDOptions(0.1).momentum(0.9));
      OneCycleLR cycle(other, {.max_lr = 1, .total_steps = 7});
      ReduceLROnPlateau plateau(other, {.patience = 100});
      auto [model, optimizer, by_step, ending, by_metric] =
          accelerator.prepare(net, sgd, halving, cycle, plateau);
      for (int micro_batch = 0; micro_batch < 8; ++micro_batch)
        accelerator.accumulate(
            model, [&, &model = model, &optimizer = optimizer, &by_step = by_step, &ending = ending,
                    &by_metric = by_metric] {
              const auto loss = model(torch::ones({1}) * double(1 + state.process_index()));
              accelerator.backward(loss);
              optimizer.step();
              by_step.step();
              ending.step();
              by_metric.step(accelerator.reduce(loss.detach(), Reduction::mean));
              optimizer.zero_grad();
            });
      const auto steps = [&](int64_t one, int64_t each) { return accelerates_count ? each : one; };
      right += halving.last_epoch() == steps(4, 8) && cycle.last_epoch() == steps(4, 7) &&
               plateau.last_epoch() == 4;
    });
    CHECK(right == 2);
  }
}
