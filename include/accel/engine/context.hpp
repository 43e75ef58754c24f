// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What an accelerator and everything it has prepared share: the processes, the window, the engines
// of the policies, and the list of what was prepared. It is the `Hooks` of engine/step.hpp: it says
// what each point of the step means for tensors. Prepared objects hold it by shared pointer, so
// they may outlive the accelerator.
#pragma once

#include <accel/comm/partial_state.hpp>
#include <accel/data/active_loaders.hpp>
#include <accel/engine/autocast.hpp>
#include <accel/engine/ddp.hpp>
#include <accel/engine/grad_scaler.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/step.hpp>
#include <accel/track/trackers.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace accel {

/// Run-time values of an accelerator. What is structure is a policy; what is a number is here.
struct AcceleratorOptions {
  int64_t gradient_accumulation_steps = 1;  ///< for accumulate<dynamic>
  bool allow_uneven_batches = false;  ///< loaders whose ranks get different numbers of batches
  bool sync_with_dataloader = true;   ///< the end of a loader closes the window
  bool device_placement = true;       ///< prepare moves models and batches to the device
  int device_index = -1;              ///< of several CUDA devices; -1: the local rank's
  bool step_scheduler_with_optimizer =
      true;  ///< schedules step when the optimizer does, not at each call
  bool step_scheduler_once_per_process =
      false;  ///< Accelerate's rule: as many schedule steps as processes
  DdpOptions ddp{};
  GradScalerOptions grad_scaler{};
  CommunicatorOptions communicator{};
  std::string project_dir{};  ///< where trackers write
  std::vector<TrackerChoice>
      log_with{};  ///< "json_lines", "tensorboard", "all", or trackers of your own
};

/// An optimizer that was prepared, as far as the window is concerned.
struct OptimizerRecord {
  const void* optimizer = nullptr;     ///< whose it is
  std::vector<at::Tensor> parameters;  ///< of the model, each once
  bool unscaled = false;               ///< in this window
  bool finite = true;                  ///< what unscaling found
  bool skipped = false;                ///< its last step
};

/// A model that was prepared.
struct ModelRecord {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;     ///< each once
  std::unique_ptr<DataParallel> replica;  ///< where the backend reduces
  int suspended = 0;                      ///< scopes of no_sync that it is in
};

template <class Backend, class Precision, class Accumulation>
class Context {
  struct Nothing {};

 public:
  Context(PartialState processes, const AcceleratorOptions& run_time)
      : state(std::move(processes)),
        options(run_time),
        step(run_time.gradient_accumulation_steps),
        loaders(std::make_shared<ActiveLoaders>()),
        scaler(make_scaler(run_time)) {}

  PartialState state;
  AcceleratorOptions options;
  Step<Backend, Precision, Accumulation> step;
  std::shared_ptr<ActiveLoaders> loaders;
  [[no_unique_address]] std::conditional_t<Precision::needs_scaler, GradScaler, Nothing> scaler;
  std::vector<ModelRecord> models;
  std::vector<std::shared_ptr<OptimizerRecord>> optimizers;

  /// Gives a module its place: device, dtype, and (where the backend reduces) the same values on
  /// every rank. A module that has its place already is left alone; one with other parameters than
  /// before (another object at the same address, or a module that has grown) is taken up anew.
  void adopt(const std::shared_ptr<torch::nn::Module>& module, bool place) {
    auto parameters = unique_tensors(module->parameters());
    for (auto known = models.begin(); known != models.end(); ++known) {
      if (known->module != module) continue;
      if (same_tensors(known->parameters, parameters)) return;
      models.erase(known);
      break;
    }
    if (place) module->to(state.device());
    if constexpr (Precision::parameter_type != element_type::float32)
      cast_floating_(*module, scalar_type(Precision::parameter_type));
    ModelRecord record{module, std::move(parameters), nullptr};
    if constexpr (Backend::distributed)
      record.replica =
          std::make_unique<DataParallel>(module, state.communicator(), options.ddp,
                                         GradientWire{scalar_type(Precision::parameter_type),
                                                      scalar_type(Precision::reduce_type)});
    models.push_back(std::move(record));
  }

  // The hooks of the step, in the order in which a window meets them.

  void enter() {
    inside_ = true;
    // Where the loader's end does not close windows, one may span two epochs.
    if (options.sync_with_dataloader && step.window().is_open() && loader_ != 0 &&
        !loaders->is_active(loader_))
      abandon_window();
    if (!step.window().is_open()) {
      loader_ = loaders->innermost();
      reset_window();
    }
  }
  void leave() noexcept { inside_ = false; }

  [[nodiscard]] bool last_of_loader() const {
    return options.sync_with_dataloader && loaders->end_of_dataloader();
  }

  /// Takes a loss that is a sum over `count` items, before its backward, and returns what it is
  /// multiplied by: 1 inside a window, whose gradients are weighted where it closes; else the
  /// weight. Reduced gradients are the mean over the ranks of sums, so that ranks / items makes them
  /// the mean over all items. Collective where the micro-batch closes a window.
  [[nodiscard]] double weigh(int64_t count) {
    auto& window = step.window();
    if constexpr (decltype(step)::accumulates) {
      if (inside_) {
        take(LossKind::sum);
        counted_ += count;
        if (window.closes()) window.set_weight(weight_of(counted_));
        return 1.0;
      }
    }
    return window.closes() ? weight_of(count) : 1.0;
  }

  /// Says that the next loss is a mean.
  void take_mean() {
    nothing_counted_ = false;
    if constexpr (decltype(step)::accumulates)
      if (inside_) take(LossKind::mean);
  }

  /// Whether the losses of the last window were sums over no items, on no rank: there is nothing to
  /// step on.
  [[nodiscard]] bool nothing_counted() const noexcept { return nothing_counted_; }

  [[nodiscard]] static at::Tensor divide(const at::Tensor& loss, int64_t by) { return loss / by; }

  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) {
    if (!inside_) settle_scaler();
    return scaler.scale(loss);
  }

  void arm(const at::Tensor& loss) {
    armed_.clear();  // of a backward that threw
    // One model needs no search; of several, those that the loss was computed with.
    std::unordered_set<const c10::TensorImpl*> leaves;
    if (models.size() > 1) leaves = leaves_of(loss);
    for (auto& model : models) {
      if (model.suspended > 0) continue;
      if (models.size() > 1 && !model.replica->is_among(leaves)) continue;
      model.replica->arm(loss);
      armed_.push_back(model.replica.get());
    }
  }

  void reduced() {
    const auto armed = std::exchange(armed_, {});
    for (auto* replica : armed) replica->finish();
    buffers_differ_ = buffers_differ_ || !armed.empty();
  }

  /// After a backward that threw: throws Error(collective) where its reduction was the cause.
  void explain(const std::exception& failure) const {
    for (const auto* replica : armed_) replica->explain(failure);
  }

  void correct(double factor) {
    if (std::exchange(corrected_, true)) return;
    std::vector<at::Tensor> parameters;
    for (const auto& optimizer : optimizers)
      parameters.insert(parameters.end(), optimizer->parameters.begin(),
                        optimizer->parameters.end());
    for (const auto& model : models)
      parameters.insert(parameters.end(), model.parameters.begin(), model.parameters.end());
    at::NoGradGuard no_grad;
    for (auto& gradient : gradients_of(unique_tensors(parameters))) gradient.mul_(factor);
  }

  /// Divides the gradients of an optimizer by the loss scale, once a window.
  void unscale(OptimizerRecord& optimizer) {
    if constexpr (Precision::needs_scaler) {
      if (std::exchange(optimizer.unscaled, true)) return;
      optimizer.finite = scaler.unscale_(gradients_of(optimizer.parameters));
    }
  }

  template <class Kernel>
  void step_scaled(Kernel& kernel) {
    OptimizerRecord& record = kernel.record();
    unscale(record);
    record.skipped = !record.finite;
    if (record.finite) kernel.step();
    stepped_ = true;
  }

  /// Updates the scale once all optimizers of a window have stepped. That is known at the end of
  /// `accumulate` if they stepped in it, else when the next loss is scaled or the scaler is looked
  /// at.
  void settle_scaler() {
    if constexpr (Precision::needs_scaler) {
      if (!std::exchange(stepped_, false)) return;
      scaler.update();
      for (const auto& optimizer : optimizers) {
        optimizer->unscaled = false;
        optimizer->finite = true;
      }
    }
  }

  void after_window() {
    settle_scaler();
    if constexpr (Backend::distributed) share_buffers();
  }

  /// Ranks train with buffers of their own (running statistics); at the end of a window rank 0's
  /// are everybody's. Not before: a graph that is still to be run backward may have saved them.
  void share_buffers() {
    if constexpr (Backend::distributed) {
      if (!std::exchange(buffers_differ_, false)) return;
      for (auto& model : models) model.replica->broadcast_buffers();
    }
  }

  /// Whether a micro-batch is being processed.
  [[nodiscard]] bool inside() const noexcept { return inside_; }

  /// Enters (1) or leaves (-1) a scope in which a model is not reduced; null stands for all models.
  void suspend_reduction(const torch::nn::Module* module, int by) noexcept {
    for (auto& model : models)
      if (!module || model.module.get() == module) model.suspended += by;
  }

  /// Forgets gradients that belong to no finished window.
  void abandon_window() {
    for (const auto& optimizer : optimizers) {
      optimizer->unscaled = false;
      for (auto& parameter : optimizer->parameters) parameter.mutable_grad().reset();
    }
    step.window().abandon();
  }

  [[nodiscard]] int64_t reductions() const noexcept {
    int64_t count = 0;
    for (const auto& model : models) count += model.replica ? model.replica->reductions() : 0;
    return count;
  }

 private:
  static auto make_scaler(const AcceleratorOptions& run_time) {
    if constexpr (Precision::needs_scaler)
      return GradScaler(run_time.grad_scaler);
    else
      return Nothing{};
  }

  [[nodiscard]] double weight_of(int64_t mine) {
    const auto all = state.communicator().all_sum(mine);
    nothing_counted_ = all == 0;
    return all > 0 ? static_cast<double>(state.num_processes()) / static_cast<double>(all) : 0.0;
  }

  void take(LossKind kind) {
    if (!step.window().take(kind))
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: a window has losses with a count and losses without; give every "
          "backward in it a count, or none",
          state.process_index());
  }

  void reset_window() {
    settle_scaler();
    corrected_ = false;
    counted_ = 0;
    for (const auto& optimizer : optimizers) {
      optimizer->unscaled = false;
      optimizer->finite = true;
    }
  }

  bool inside_ = false;
  bool corrected_ = false;
  bool buffers_differ_ = false;
  bool stepped_ = false;  ///< an optimizer, since the scale was last updated
  bool nothing_counted_ = false;
  int64_t counted_ = 0;  ///< items of this window's losses, on this rank
  uint64_t loader_ = 0;  ///< the iteration that this window was opened in
  std::vector<DataParallel*> armed_;
};

}  // namespace accel
