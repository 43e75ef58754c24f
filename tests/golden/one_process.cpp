// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The golden traces of one process: the same numbers as PyTorch and Accelerate over 100 steps.
#include "replay.hpp"

#include <algorithm>

namespace {

using accel::accumulate;
using accel::cpu;
using accel::on;
using accel::single;
using golden::fused_adamw;
using golden::momentum;
using golden::no_schedule;
using golden::replay;

template <class Precision, int Steps = 1>
using OneProcess = accel::Accelerator<single, Precision, accumulate<Steps>, on<cpu>>;

TEST_CASE("golden: plain") {
  OneProcess<accel::fp32> accelerator;
  replay("plain", accelerator, momentum(), no_schedule());
}

TEST_CASE("golden: plain with the dropout module") {
  if (golden::intel())
    SKIP("an Intel CPU draws the masks of torch::nn::Dropout from another stream");
  OneProcess<accel::fp32> accelerator;
  replay("plain_module_dropout", accelerator, momentum(), no_schedule());
}

TEST_CASE("golden: accumulation over 4 micro-batches") {
  OneProcess<accel::fp32, 4> accelerator;
  replay("accumulation4", accelerator, fused_adamw(), no_schedule());
}

TEST_CASE("golden: accumulation over a number known at run time") {
  accel::Accelerator<single, accel::fp32, accumulate<accel::dynamic>, on<cpu>> accelerator(
      {.gradient_accumulation_steps = 4});
  replay("accumulation4", accelerator, fused_adamw(), no_schedule());
}

TEST_CASE("golden: accumulation with a short last window") {
  OneProcess<accel::fp32, 4> accelerator;
  replay("accumulation4_short_window", accelerator, fused_adamw(), no_schedule());
}

TEST_CASE("golden: bf16") {
  OneProcess<accel::bf16> accelerator;
  replay("bf16", accelerator, momentum(0.01), no_schedule());
}

TEST_CASE("golden: fp16 with a scaler that grows, overflows and backs off") {
  OneProcess<accel::fp16> accelerator({.grad_scaler = {.growth_interval = 8}});
  replay("fp16_scaler", accelerator, momentum(), [](torch::optim::Optimizer& optimizer) {
    return accel::StepLR(optimizer, {.step_size = 10, .gamma = 0.8});
  });
}

TEST_CASE("golden: StepLR") {
  OneProcess<accel::fp32> accelerator;
  replay("schedule_step", accelerator, momentum(), [](torch::optim::Optimizer& optimizer) {
    return accel::StepLR(optimizer, {.step_size = 10, .gamma = 0.7});
  });
}

TEST_CASE("golden: LambdaLR with accumulation") {
  OneProcess<accel::fp32, 2> accelerator;
  replay("schedule_lambda_accumulation2", accelerator, momentum(),
         [](torch::optim::Optimizer& optimizer) {
           return accel::LambdaLR(optimizer, [](std::int64_t step) {
             const auto at = static_cast<double>(step + 1);
             return std::min(at / 10, 10 / at);
           });
         });
}

}  // namespace
