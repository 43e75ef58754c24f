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

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
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
  bool sync_each_batch = false;       ///< ddp: reduce in every micro-batch, not once a window
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
  std::function<void()> refresh;       ///< takes up groups that were added since
  std::vector<at::Tensor> parameters;  ///< of the model, each once
  bool unscaled = false;               ///< in this window
  bool finite = true;                  ///< what unscaling found
  bool skipped = false;                ///< its last step
  bool stepped = false;                ///< since its gradients were cleared or the window began
  bool stale = false;        ///< gradients were added to those of the step before clearing them
  int64_t cleared_at = 0;    ///< reductions when its gradients were last cleared
  size_t owned = 0;          ///< of its parameters, those whose models are known:
  int64_t owned_among = -1;  ///< the models as they were when that was looked up
  std::vector<const torch::nn::Module*> owners;
};

/// A model that was prepared.
struct ModelRecord {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;       ///< each once
  std::unique_ptr<DataParallel> replica{};  ///< where the backend reduces
  int suspended = 0;                        ///< scopes of no_sync that it is in
  bool local = false;                       ///< has gradients of this window that were not reduced
  int64_t reduced_at = 0;                   ///< the number of its last reduction
};

template <class Backend, class Precision, class Accumulation>
class Context {
  struct Nothing {};

 public:
  static constexpr bool reduces = Backend::distributed;
  /// Whether gradients may have to be finished (corrected, unscaled) before a step.
  static constexpr bool finishes_gradients =
      Precision::needs_scaler || Step<Backend, Precision, Accumulation>::accumulates;

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
    ++models_version_;
    for (auto known = models.begin(); known != models.end(); ++known) {
      if (known->module != module) continue;
      const bool works = !known->replica || !known->replica->is_broken();
      if (works && same_tensors(known->parameters, parameters)) return;
      models.erase(known);
      break;
    }
    for (const auto& other : models)
      if (Backend::distributed && have_common(other.parameters, parameters))
        detail::fail(ErrorCategory::usage,
                     "accel: rank {}: the models {} and {} share parameters, and {} reduces each "
                     "model's; prepare one module that holds both",
                     state.process_index(), other.module->name(), module->name(), Backend::name);
    if (place) module->to(state.device());
    if constexpr (Precision::parameter_type != element_type::float32)
      cast_floating_(*module, scalar_type(Precision::parameter_type));
    ModelRecord record{module, std::move(parameters)};
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
    counted_here_ = false;
    drop_left_window();
    if (!step.window().is_open()) {
      loader_ = loaders->innermost();
      reset_window();
    }
  }
  void leave() noexcept { inside_ = false; }

  /// Forgets a window whose loader was left in its middle. Where the loader's end does not close
  /// windows, one may span two epochs.
  void drop_left_window() {
    if (options.sync_with_dataloader && step.window().is_open() && loader_ != 0 &&
        !loaders->is_active(loader_))
      abandon_window();
  }

  [[nodiscard]] bool last_of_loader() const {
    return options.sync_with_dataloader && loaders->end_of_dataloader();
  }

  /// Takes a loss that is a sum over `count` items, before its backward, and returns what it is
  /// multiplied by: 1 inside a window, whose gradients are weighted where it closes; else the
  /// weight. Reduced gradients are the mean over the ranks of sums, so that ranks / items makes them
  /// the mean over all items. Collective where the micro-batch closes a window.
  [[nodiscard]] double weigh(int64_t count) {
    auto& window = step.window();
    window.stand_alone();
    if constexpr (decltype(step)::accumulates) {
      if (inside_) {
        if (std::exchange(counted_here_, true))
          detail::fail(
              ErrorCategory::usage,
              "accel: rank {}: a second loss with a count in one micro-batch; add the sums "
              "and the counts, and call backward once",
              state.process_index());
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
    armed_.clear();
    for (auto* model : models_of(loss)) {
      model->replica->arm(loss);
      armed_.push_back(model);
    }
  }

  void reduced() {
    const auto armed = std::exchange(armed_, {});
    ++reductions_;
    for (auto* model : armed) {
      model->replica->finish();
      model->local = false;
      model->reduced_at = reductions_;
    }
    buffers_differ_ = buffers_differ_ || !armed.empty();
  }

  [[nodiscard]] bool sync_each_batch() const noexcept { return options.sync_each_batch; }

  void keep_local(const at::Tensor& loss) {
    for (auto* model : models_of(loss)) model->local = true;
  }

  /// After a backward that threw: its models are to be prepared again. Throws Error(collective)
  /// where their reduction was the cause.
  void failed(const std::exception& failure) {
    const auto armed = std::exchange(armed_, {});
    for (auto* model : armed) model->replica->give_up();
    if (dynamic_cast<const Error*>(&failure)) return;  // it says what it is
    for (const auto* model : armed) model->replica->explain(failure);
  }

  /// Throws Error(usage) where the window closes and some of these parameters have gradients of its
  /// earlier micro-batches only, which no backward has reduced.
  void require_reduced(const std::vector<at::Tensor>& parameters) const {
    for (const auto& model : models)
      if (model.local && !is_suspended(model) && !gradients_of(parameters).empty() &&
          have_common(model.parameters, parameters))
        detail::fail(ErrorCategory::usage,
                     "accel: rank {}: the micro-batch that closes the window had no backward "
                     "through {}, so that the gradients of the earlier ones were not reduced; call "
                     "backward in it too (with a loss of zero, say), or zero_grad instead of step",
                     state.process_index(), model.module->name());
  }

  /// The same before an optimizer's step. Throws also where gradients came from no
  /// `accelerator.backward` at all, and where a parameter is of no prepared model: what is not
  /// reduced drifts apart.
  void require_reduced(OptimizerRecord& optimizer) {
    if (models.empty()) return;  // after free_memory
    find_owners(optimizer);
    require_reduced(optimizer.parameters);
    for (const auto& model : models) {
      if (is_suspended(model) || model.reduced_at > optimizer.cleared_at ||
          !std::ranges::count(optimizer.owners, model.module.get()))
        continue;
      if (gradients_of(model.parameters).empty()) continue;
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the gradients of {} are those of this rank alone, since no "
                   "accelerator.backward has reduced them; call accelerator.backward(loss), not "
                   "loss.backward()",
                   state.process_index(), model.module->name());
    }
  }

  /// Throws Error(usage) where the backward of `loss` would add to gradients that are already
  /// without the loss scale, or corrected for a short window: the sum would be of two kinds.
  void require_unfinished(const at::Tensor& loss) {
    const bool any =
        !corrected_.empty() || std::ranges::any_of(optimizers, &OptimizerRecord::unscaled,
                                                   [](const auto& each) -> auto& { return *each; });
    if (!any || !step.sync_gradients()) return;
    const auto leaves = leaves_of(loss);
    for (const auto& optimizer : optimizers) {
      const bool touched = std::ranges::any_of(optimizer->parameters, [&](const auto& parameter) {
        const auto* key = parameter.unsafeGetTensorImpl();
        return leaves.contains(key) && (optimizer->unscaled || corrected_.contains(key));
      });
      if (!touched) continue;
      // After the step what this adds is dropped by zero_grad, as in the second half of a GAN.
      if (!std::exchange(optimizer->stale, true) && optimizer->stepped) continue;
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: backward would add to gradients that clip_grad_norm_ or "
          "unscale_gradients has taken the loss scale out of; clip after the last backward "
          "of an optimizer, or step and zero_grad before the next",
          state.process_index());
    }
  }
  void require_fresh(const OptimizerRecord& optimizer) const {
    if (optimizer.stale)
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: gradients were added to those of the last step; call zero_grad "
                   "between the step and the next backward of an optimizer",
                   state.process_index());
  }

  void correct(const std::vector<at::Tensor>& parameters, double factor) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters)
      if (auto& gradient = parameter.mutable_grad();
          gradient.defined() && corrected_.insert(parameter.unsafeGetTensorImpl()).second)
        gradient.mul_(factor);
  }
  template <class Kernel>
  void correct(const Kernel& kernel, double factor) {
    correct(kernel.record().parameters, factor);
  }

  /// Says that an optimizer's gradients were cleared: what comes now is new.
  void cleared(OptimizerRecord& optimizer) {
    optimizer.unscaled = optimizer.stepped = optimizer.stale = false;
    optimizer.cleared_at = reductions_;
    for (const auto& parameter : optimizer.parameters)
      corrected_.erase(parameter.unsafeGetTensorImpl());
  }

  /// Divides the gradients of an optimizer by the loss scale, once a window.
  void unscale(OptimizerRecord& optimizer) {
    if constexpr (Precision::needs_scaler) {
      if (optimizer.refresh) optimizer.refresh();
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
      for (auto& model : models) model.replica->broadcast_buffers(source_);
    }
  }

  // Loops that end at different times on different ranks (Accelerator::join_uneven_inputs): before
  // each reduction the ranks say whether they have a batch, and those that have none take part with
  // a loss of zero.

  /// Begins or ends that. One model, since a rank without a batch cannot know which one it would be.
  void join(bool joining) {
    if (joining && (models.size() != 1 || options.ddp.sync_batch_norm || joining_))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: join_uneven_inputs is for one prepared model, without "
                   "sync_batch_norm and not nested; there are {}",
                   state.process_index(), models.size());
    joining_ = joining;
    if (!joining) source_ = 0;
  }
  [[nodiscard]] bool is_joining() const noexcept { return joining_; }

  /// What ranks say before a reduction.
  struct Announcement {
    int64_t source;  ///< the highest rank that has a batch; -1: none has
    bool counted;    ///< the loss has a count
  };
  Announcement announce(bool has_batch, bool counted) {
    const auto mine = torch::tensor({has_batch ? state.process_index() : -1, counted ? 1 : 0});
    const auto all = state.communicator().all_reduce(mine, Reduction::max);
    const Announcement announcement{all[0].template item<int64_t>(),
                                    all[1].template item<int64_t>() != 0};
    if (announcement.source >= 0) source_ = static_cast<int>(announcement.source);
    return announcement;
  }

  /// Takes part in the reductions of the other ranks until none has a batch left; returns the rank
  /// whose model saw the last one.
  int shadow() {
    while (true) {
      const auto announcement = announce(false, false);
      if (announcement.source < 0) return source_;
      if (announcement.counted) (void)weight_of(0);
      auto& model = models.front();
      if (const auto loss = model.replica->zero_loss(); loss.defined()) {
        arm(loss);
        loss.backward();
        reduced();
      }
      for (auto& parameter : model.parameters) parameter.mutable_grad().reset();
      share_buffers();
    }
  }

  /// Whether a micro-batch is being processed.
  [[nodiscard]] bool inside() const noexcept { return inside_; }

  /// Enters (1) or leaves (-1) a scope in which a model is not reduced; null stands for all models.
  void suspend_reduction(const torch::nn::Module* module, int by) noexcept {
    if (!module) suspended_ += by;
    for (auto& model : models)
      if (model.module.get() == module) model.suspended = std::max(0, model.suspended + by);
  }

  /// Lets go of what was prepared.
  void forget() {
    step.window().abandon();
    armed_.clear();
    models.clear();
    optimizers.clear();
  }

  /// Forgets gradients that belong to no finished window.
  void abandon_window() {
    for (const auto& optimizer : optimizers) {
      if (optimizer->refresh) optimizer->refresh();
      for (auto& parameter : optimizer->parameters) parameter.mutable_grad().reset();
      cleared(*optimizer);
    }
    for (auto& model : models) model.local = false;
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

  [[nodiscard]] bool is_suspended(const ModelRecord& model) const noexcept {
    return suspended_ > 0 || model.suspended > 0;
  }

  /// The models that a loss was computed with and that are not in a scope of no_sync. One model
  /// needs no search.
  [[nodiscard]] std::vector<ModelRecord*> models_of(const at::Tensor& loss) {
    std::unordered_set<const c10::TensorImpl*> leaves;
    if (models.size() > 1) leaves = leaves_of(loss);
    std::vector<ModelRecord*> found;
    for (auto& model : models)
      if (!is_suspended(model) && (models.size() == 1 || model.replica->is_among(leaves)))
        found.push_back(&model);
    return found;
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
    corrected_.clear();
    counted_ = 0;
    for (auto& model : models) model.local = false;
    for (const auto& optimizer : optimizers) {
      optimizer->unscaled = optimizer->stepped = optimizer->stale = false;
      optimizer->finite = true;
    }
  }

  /// Looks up which models an optimizer's parameters are of.
  void find_owners(OptimizerRecord& optimizer) const {
    if (optimizer.owned == optimizer.parameters.size() && optimizer.owned_among == models_version_)
      return;
    std::unordered_set<const c10::TensorImpl*> known;
    optimizer.owners.clear();
    for (const auto& model : models) {
      if (have_common(model.parameters, optimizer.parameters))
        optimizer.owners.push_back(model.module.get());
      for (const auto& parameter : model.parameters) known.insert(parameter.unsafeGetTensorImpl());
    }
    for (const auto& parameter : optimizer.parameters)
      if (parameter.requires_grad() && !known.contains(parameter.unsafeGetTensorImpl()))
        detail::fail(
            ErrorCategory::usage,
            "accel: rank {}: the optimizer steps on a parameter of shape {} that is of no "
            "prepared model, so that nothing reduces its gradient; prepare its module (one "
            "that has grown: again)",
            state.process_index(), c10::str(parameter.sizes()));
    optimizer.owned = optimizer.parameters.size();
    optimizer.owned_among = models_version_;
  }

  bool inside_ = false;
  std::unordered_set<const c10::TensorImpl*> corrected_;  ///< parameters, in this window
  bool buffers_differ_ = false;
  bool stepped_ = false;  ///< an optimizer, since the scale was last updated
  bool nothing_counted_ = false;
  int64_t counted_ = 0;        ///< items of this window's losses, on this rank
  uint64_t loader_ = 0;        ///< the iteration that this window was opened in
  bool counted_here_ = false;  ///< in this micro-batch
  int suspended_ = 0;          ///< scopes of no_sync of all models
  int64_t reductions_ = 0;     ///< backward passes that reduced
  int64_t models_version_ = 0;
  bool joining_ = false;
  int source_ = 0;  ///< the rank whose buffers are everybody's
  std::vector<ModelRecord*> armed_;
};

}  // namespace accel
