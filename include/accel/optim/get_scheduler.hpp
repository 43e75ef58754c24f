// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Schedules by name: those of Hugging Face transformers, which are factors of the initial rate with
// a linear warm-up from 0; and rates that grow with the batch. Comes after schedule.hpp.
#pragma once

#include <accel/optim/schedule.hpp>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace accel {

/// What single schedules of `get_scheduler` take besides their steps.
struct SchedulerOptions {
  std::optional<double> num_cycles{};       ///< cosine: 0.5 waves; cosine_with_restarts: 1 start
  double lr_end = 1e-7;                     ///< polynomial: the last rate
  double power = 1.0;                       ///< polynomial
  std::optional<std::int64_t> timescale{};  ///< inverse_sqrt: the steps of the warm-up, or 10000
};

/// One of transformers' schedules: constant, constant_with_warmup, linear, cosine,
/// cosine_with_restarts, polynomial, inverse_sqrt. A step is an optimizer step. All but `constant`
/// need `num_warmup_steps`; linear, cosine, cosine_with_restarts and polynomial need
/// `num_training_steps` too.
[[nodiscard]] LambdaLR get_scheduler(std::string_view name, torch::optim::Optimizer& optimizer,
                                     std::optional<std::int64_t> num_warmup_steps = std::nullopt,
                                     std::optional<std::int64_t> num_training_steps = std::nullopt,
                                     const SchedulerOptions& options = {});

/// `get_scheduler("cosine", ...)` that stays at 0 once it is there.
[[nodiscard]] LambdaLR cosine_schedule(torch::optim::Optimizer& optimizer, std::int64_t total_steps,
                                       std::int64_t warmup_steps = 0);

/// `get_scheduler("linear", ...)`: from the initial rate to 0 along a line over `total_steps`,
/// after a linear warm-up.
[[nodiscard]] LambdaLR linear_schedule(torch::optim::Optimizer& optimizer, std::int64_t total_steps,
                                       std::int64_t warmup_steps = 0);

/// How rates grow with the number of samples in an optimizer step: as it, usual with SGD (Goyal et
/// al. 2017, arXiv:1706.02677), or as its root, usual with Adam (Krizhevsky 2014, arXiv:1404.5997).
enum class BatchScaling { linear, square_root };

/// Multiplies the rate of each group by global_batch / base_batch, or by its root, and returns the
/// factor. The global batch is batch size x accumulation steps x processes; the base batch is the
/// one that the optimizer's rates were found with. Before a schedule is made: it takes the rates
/// that it meets for the initial ones.
double scale_learning_rate(torch::optim::Optimizer& optimizer, BatchScaling rule,
                           std::int64_t global_batch, std::int64_t base_batch);

}  // namespace accel
