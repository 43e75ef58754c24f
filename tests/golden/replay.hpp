// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a golden trace through an Accelerator and holds every number of it against the file. The
// loop is the one that a user writes; what differs between traces is the Accelerator's type, the
// optimizer and the schedule.
#pragma once

#include "recipe.hpp"
#include "trace.hpp"

#include <accel/accel.hpp>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace golden {

inline auto momentum(double lr = 0.05) {
  return [lr](const Mlp& model) {
    return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  };
}

inline auto fused_adamw() {
  return [](const Mlp& model) {
    return torch::optim::AdamW(model.parameters(),
                               torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
  };
}

/// A learning rate that stays what it is.
struct NoSchedule {
  void step() {}
};

inline auto no_schedule() {
  return [](torch::optim::Optimizer&) { return NoSchedule(); };
}

/// What a run shows of itself.
struct Series {
  std::vector<double> losses;                      // a micro-batch
  std::vector<std::vector<std::int64_t>> batches;  // a micro-batch
  std::vector<double> lr, grad_norms, scales;      // a step
  std::vector<std::int64_t> windows;               // micro-batches of a step
  std::vector<bool> skipped;                       // a step
  std::vector<double> validation;                  // a validation
};

// What a trace does beside training: make_golden.py has classes of these names. Each is given the
// loop as a function, and hands it what to do at the end of a micro-batch, in its window and after it.

struct Plain {
  template <class Accelerator, class Model, class Optimizer, class Loop>
  void operator()(Accelerator&, const Model&, Optimizer&, const Start&, Series&, Loop loop) const {
    loop([] {}, [] {});
  }
};

struct LocalSteps {
  template <class Accelerator, class Model, class Optimizer, class Loop>
  void operator()(Accelerator& accelerator, const Model& model, Optimizer&, const Start&, Series&,
                  Loop loop) const {
    accel::local_sgd(accelerator, model, 4,
                     [&](auto& local) { loop([&] { local.step(); }, [] {}); });
  }
};

struct Validation {
  template <class Accelerator, class Model, class Optimizer, class Loop>
  void operator()(Accelerator& accelerator, const Model& model, Optimizer& optimizer,
                  const Start& start, Series& series, Loop loop) const {
    auto held_out = accelerator.prepare(
        accel::data_loader(start.samples, accel::SequentialSampler(30), {.batch_size = 8}));
    const auto sum_of_losses = [&] {
      const torch::NoGradGuard no_grad;
      start.model->eval();
      double total = 0;
      for (auto& [x, y, sample_numbers] : held_out) {
        const auto losses = torch::nn::functional::cross_entropy(
            model(x), y, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
        total +=
            accelerator.gather_for_metrics(losses).to(at::kDouble).sum().template item<double>();
      }
      start.model->train();
      return total;
    };
    loop([] {},
         [&] {
           const bool stepped = accelerator.sync_gradients();
           if (stepped && series.lr.size() % 10 == 0) series.validation.push_back(sum_of_losses());
           if (stepped && series.lr.size() == 50 && accelerator.process_index() == 1)
             accelerator.set_trigger();
           if (accelerator.check_trigger())
             for (auto& group : optimizer.param_groups())
               group.options().set_lr(group.options().get_lr() / 5);
         });
  }
};

/// Trains until the trace has as many steps as its file.
template <class Accelerator, class Optimizer, class Schedule, class Beside>
Series train(Accelerator& accelerator, const Start& start, const Json& trace,
             Optimizer& user_optimizer, Schedule& user_schedule, Beside beside) {
  auto [model, optimizer, loader, schedule] = accelerator.prepare(
      start.model, user_optimizer,
      accel::data_loader(start.samples, {.batch_size = batch_size, .shuffle = true}),
      user_schedule);
  const std::size_t steps = trace["lr"].size();
  const bool clips = trace.contains("grad_norms");
  Series series;
  std::int64_t in_this_window = 0;
  const auto loop = [&, &model = model, &optimizer = optimizer, &loader = loader,
                     &schedule = schedule](auto in_window, auto between) {
    while (series.lr.size() < steps) {
      for (auto& [x, y, sample_numbers] : loader) {
        at::Tensor loss;
        const double lr = optimizer.param_groups()[0].options().get_lr();
        accelerator.accumulate(model, [&, &x = x, &y = y] {
          loss = torch::nn::functional::cross_entropy(model(x), y);
          accelerator.backward(loss);
          if (clips) {
            const auto norm = accelerator.clip_grad_norm_(model, clip_norm).template item<double>();
            if (accelerator.sync_gradients()) series.grad_norms.push_back(norm);
          }
          optimizer.step();
          schedule.step();
          optimizer.zero_grad();
          in_window();
        });
        series.losses.push_back(loss.template item<double>());
        series.batches.emplace_back(
            sample_numbers.template data_ptr<std::int64_t>(),
            sample_numbers.template data_ptr<std::int64_t>() + sample_numbers.numel());
        ++in_this_window;
        if (accelerator.sync_gradients()) {
          series.lr.push_back(lr);
          series.windows.push_back(std::exchange(in_this_window, 0));
          series.skipped.push_back(optimizer.step_was_skipped());
          if constexpr (requires { accelerator.scaler(); })
            series.scales.push_back(accelerator.scaler().state().scale);
        }
        between();
        if (series.lr.size() == steps) break;
      }
    }
  };
  beside(accelerator, model, optimizer, start, series, loop);
  return series;
}

/// Replays a trace on this rank: `make_optimizer(model)`, then `make_schedule(optimizer)`, then the
/// training, with what comes beside it.
template <class Accelerator, class MakeOptimizer, class MakeSchedule, class Beside = Plain>
void replay(const std::string& name, Accelerator& accelerator, MakeOptimizer make_optimizer,
            MakeSchedule make_schedule, Beside beside = {}) {
  at::set_num_threads(1);
  const Json trace = read_trace(name);
  REQUIRE(trace["ranks"] == accelerator.num_processes());
  const auto rank = static_cast<std::size_t>(accelerator.process_index());
  INFO("trace " << name << ", rank " << rank);
  const double tolerance = trace["tolerance"].get<double>();

  check_first_draws(trace, accelerator.process_index());
  const Start start = start_of(trace, accelerator.process_index());
  check_start(start, trace);
  start.model->train();
  auto optimizer = make_optimizer(*start.model);
  auto schedule = make_schedule(optimizer);
  const Series series = train(accelerator, start, trace, optimizer, schedule, beside);

  CHECK(series.batches == trace["batches"][rank].get<std::vector<std::vector<std::int64_t>>>());
  check_series("losses", series.losses, numbers(trace["losses"][rank]), tolerance);
  check_series("lr", series.lr, numbers(trace["lr"]), 0.0);
  if (trace.contains("grad_norms"))
    // A norm in half precision comes from gradients that were rounded to 11 bits.
    check_series("grad_norms", series.grad_norms, numbers(trace["grad_norms"]),
                 tolerance > 1e-6 ? 1e-2 : tolerance);
  if (trace.contains("windows"))
    CHECK(series.windows == trace["windows"].get<std::vector<std::int64_t>>());
  if (trace.contains("scales"))
    check_series("scales", series.scales, numbers(trace["scales"]), 0.0);
  if (trace.contains("validation"))  // each a sum of 30 losses
    check_series("validation", series.validation, numbers(trace["validation"]), 30 * tolerance);
  if (trace.contains("skipped")) CHECK(series.skipped == trace["skipped"].get<std::vector<bool>>());
  // Equal draws after the run: nothing drew more or less than in Python.
  const auto drawn = torch::randint(0, (std::int64_t{1} << 31) - 1, {2}, torch::kLong);
  for (std::int64_t i = 0; i < 2; ++i)
    CHECK(drawn[i].item<std::int64_t>() == trace["draws_after"][rank][static_cast<std::size_t>(i)]);
  // Sums over up to 1,024 parameters, each as far off as the tolerance allows one loss to be.
  for (const auto& item : start.model->named_parameters())
    check_series("checksums of the end: " + item.key(), checksum(item.value()),
                 numbers(trace["checksums_end"][item.key()]), 20 * tolerance);
}

}  // namespace golden
