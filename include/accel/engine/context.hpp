// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What an accelerator and everything it has prepared share: what was prepared (its base,
// prepared_objects.hpp), the window, the loss scaler. It is the `Hooks` of engine/step.hpp: it says
// what each point of the step means for tensors. Prepared objects hold it by shared pointer, so
// they may outlive the accelerator.
#pragma once

#include <accel/data/active_loaders.hpp>
#include <accel/engine/autocast.hpp>
#include <accel/engine/grad_scaler.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/offloaded_activations.hpp>
#include <accel/engine/prepared_objects.hpp>
#include <accel/engine/step.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace accel {

/// What keeps a model's ranks together.
template <class Backend>
using ReplicaOf =
    std::conditional_t<Backend::shards_optimizer_state, ShardedParallel, DataParallel>;

namespace detail {

/// How a backend cuts a module to shard it, or a placement to recompute it.
template <class Policy>
struct UnitsOf {
  using type = wrap_auto;
};
template <class Policy>
  requires requires { typename Policy::units; }
struct UnitsOf<Policy> {
  using type = typename Policy::units;
};

}  // namespace detail

template <class Backend, class Precision, class Accumulation, class Placement>
class Context : public PreparedObjects<ReplicaOf<Backend>> {
  struct Nothing {};
  using Objects = PreparedObjects<ReplicaOf<Backend>>;
  using Objects::announce;
  using Objects::assemble;
  using Objects::before;
  using Objects::begin_window;
  using Objects::clear_gradients;
  using Objects::disassemble;
  using Objects::forget_objects;
  using Objects::is_any_suspended;
  using Objects::models_of;
  using Objects::note_items;
  using Objects::note_items_of_window;
  using Objects::send_buffers;
  using Objects::shadow;
  using Objects::source_;
  using typename Objects::JoinedCall;

 public:
  using Objects::held_gradients;
  using Objects::modules;
  using Objects::optimizers;
  using Objects::options;
  using Objects::replica_of;
  using Objects::share_buffers;
  using Objects::state;

  static constexpr bool reduces = Backend::distributed;
  /// Whether ranks hold parts of a model only.
  static constexpr bool shards = Backend::shards_optimizer_state;
  /// Whether the optimizer's state waits elsewhere than on the device,
  static constexpr bool offloads = Placement::offloads_optimizer_state;
  /// or what autograd saves.
  static constexpr bool offloads_activations = Placement::offloads_activations;
  /// Whether units run again in backward.
  static constexpr bool recomputes = Placement::recomputes;
  /// Whether gradients may have to be finished (corrected, unscaled) before a step.
  static constexpr bool finishes_gradients =
      Precision::needs_scaler || Step<Backend, Precision, Accumulation>::accumulates;

  Context(PartialState processes, const AcceleratorOptions& run_time)
      : Objects(std::move(processes), run_time),
        step(run_time.gradient_accumulation_steps),
        loaders(std::make_shared<ActiveLoaders>()),
        scaler(make_scaler(run_time)) {
    if constexpr (offloads || offloads_activations) {
      if (state.device().is_cpu())
        state.communicator().together(
            [this] {
              offload = std::make_shared<detail::OffloadFile>(options.offload.folder,
                                                              state.process_index());
            },
            ErrorCategory::config, "another rank cannot make files in its offload.folder");
    }
    if constexpr (offloads_activations)
      activations = std::make_shared<detail::OffloadedActivations>(offload);
  }

  Step<Backend, Precision, Accumulation> step;
  std::shared_ptr<ActiveLoaders> loaders;
  std::shared_ptr<detail::OffloadFile> offload;  ///< where the placement offloads, on the CPU
  [[no_unique_address]] std::conditional_t<
      offloads_activations, std::shared_ptr<detail::OffloadedActivations>, Nothing> activations;
  bool split_batches = false;  ///< of any loader: a batch is one of all ranks together
  [[no_unique_address]] std::conditional_t<Precision::needs_scaler, GradScaler, Nothing> scaler;

  /// Gives a module the place that the policies have for it. Every rank must call this.
  void adopt(const std::shared_ptr<torch::nn::Module>& module, bool place) {
    constexpr auto type = scalar_type(Precision::parameter_type);
    typename Objects::MakeReplica make;
    if constexpr (reduces)
      make = [this](std::shared_ptr<torch::nn::Module> given,
                    const detail::DeferredTensors& deferred) {
        return make_replica(std::move(given), deferred);
      };
    Objects::adopt(module, place, type, make);
    if constexpr (recomputes)
      for (auto& model : Objects::models)
        if (!model.recomputed)
          model.recomputed = std::make_shared<detail::RecomputedUnits>(
              *model.module, unit_rule_of<typename detail::UnitsOf<Placement>::type>(
                                 options.sharded.min_num_params));
  }

  /// What recomputes a module's units; null for a module that was not prepared.
  [[nodiscard]] std::shared_ptr<detail::RecomputedUnits> recomputed_units_of(
      const torch::nn::Module& module) const
    requires(recomputes)
  {
    for (const auto& model : Objects::models)
      if (model.module.get() == &module) return model.recomputed;
    return nullptr;
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
  [[nodiscard]] double weigh(const at::Tensor& loss, int64_t count) {
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
        if (window.closes()) weigh_window();
        return 1.0;
      }
    }
    if (!window.closes()) return 1.0;
    const auto weight = weight_of(count);
    note_items(loss, weight > 0);
    return weight;
  }

  /// Says that a loss, whose backward comes next, is a mean.
  void take_mean(const at::Tensor& loss) {
    note_items(loss, true);
    if constexpr (decltype(step)::accumulates)
      if (inside_) take(LossKind::mean);
  }

  /// Weights a closing window of sums whose last micro-batch had no backward, which would have done
  /// it. To be called before gradients are finished.
  void weigh_late() {
    if constexpr (decltype(step)::accumulates) {
      const auto& window = step.window();
      if (window.kind() != LossKind::sum || !window.closes() || weighed_) return;
      // Other ranks may have had one, and be done with their counts.
      if constexpr (reduces)
        detail::fail(
            ErrorCategory::usage,
            "accel: rank {}: the micro-batch that closes a window of losses with counts had "
            "no backward; call backward in it too, with a sum of none and 0",
            state.process_index());
      weigh_window();
    }
  }

  [[nodiscard]] static at::Tensor divide(const at::Tensor& loss, int64_t by) { return loss / by; }

  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) {
    if (!inside_) settle_scaler();
    if constexpr (reduces)
      if (scales_differ_ && !models_of(loss).empty()) {
        before(JoinedCall::scale);
        agree_on_scale();
      }
    return scaler.scale(loss);
  }

  using Objects::correct;
  template <class Kernel>
  void correct(const Kernel& kernel, double factor) {
    correct(kernel.record().parameters, factor);
  }

  /// Divides the gradients of an optimizer by the loss scale, once a window.
  void unscale(OptimizerRecord& optimizer) {
    if constexpr (Precision::needs_scaler) {
      if (optimizer.refresh) optimizer.refresh();
      if (std::exchange(optimizer.unscaled, true)) return;
      optimizer.finite = scaler.unscale_(held_gradients(optimizer.parameters));
      // Each rank has looked at its part.
      if constexpr (shards) {
        optimizer.finite = state.communicator().all_sum(optimizer.finite ? 0 : 1) == 0;
        if (!optimizer.finite) scaler.note_overflow();
      }
    }
  }

  template <class Kernel>
  void step_scaled(Kernel& kernel) {
    OptimizerRecord& record = kernel.record();
    unscale(record);
    record.skipped = !record.finite;
    if (record.finite) kernel.step();
    stepped_ = true;
    if constexpr (reduces) stepped_alone_ = stepped_alone_ || is_any_suspended();
  }

  /// Updates the scale once all optimizers of a window have stepped. That is known at the end of
  /// `accumulate` if they stepped in it, else when the next loss is scaled or the scaler is looked
  /// at.
  void settle_scaler() {
    if constexpr (Precision::needs_scaler) {
      if (!std::exchange(stepped_, false)) return;
      scales_differ_ = std::exchange(stepped_alone_, false) || scales_differ_;
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

  /// Whether every backward reduces: where a stage has no room for a whole gradient, always.
  [[nodiscard]] bool sync_each_batch() const noexcept {
    if constexpr (Backend::shards_gradients)
      return true;
    else
      return Objects::sync_each_batch();
  }

  /// Takes part in what the other ranks do until none has a batch left; returns the rank whose model
  /// saw the last one.
  int shadow_all() {
    settle_scaler();
    if (step.window().is_open()) abandon_window();
    while (true) {
      switch (announce(JoinedCall::none)) {
        case JoinedCall::none: return source_;
        case JoinedCall::count: (void)count_over_ranks(0); break;
        case JoinedCall::scale:
          if constexpr (Precision::needs_scaler) agree_on_scale();
          break;
        case JoinedCall::reduction: shadow(); break;
        case JoinedCall::buffers: send_buffers(); break;
      }
    }
  }

  /// A scope in which what is sharded is whole. Every rank must open and leave it.
  [[nodiscard]] auto assembled() {
    if constexpr (shards)
      return Assembled(*this);
    else
      return Nothing{};
  }

  /// Whether a micro-batch is being processed.
  [[nodiscard]] bool inside() const noexcept { return inside_; }

  /// Lets go of what was prepared; returns the copies that optimizers had. See forget_objects.
  auto forget() {
    step.window().abandon();
    return forget_objects();
  }

  /// Forgets gradients that belong to no finished window.
  void abandon_window() {
    clear_gradients();
    step.window().abandon();
  }

 private:
  class Assembled {
   public:
    explicit Assembled(Context& context) : context_(context) { context_.assemble(); }
    ~Assembled() { context_.disassemble(); }
    Assembled(const Assembled&) = delete;
    Assembled& operator=(const Assembled&) = delete;

   private:
    Context& context_;
  };

  auto make_replica(std::shared_ptr<torch::nn::Module> module,
                    [[maybe_unused]] const detail::DeferredTensors& deferred)
    requires(reduces)
  {
    const GradientWire wire{scalar_type(Precision::parameter_type),
                            scalar_type(Precision::reduce_type)};
    if constexpr (shards) {
      const ShardingPlan plan{
          Backend::shards_gradients,
          Backend::shards_parameters,
          detail::reshards_after_forward<Backend>(),
          Backend::hybrid,
          unit_rule_of<typename detail::UnitsOf<Backend>::type>(options.sharded.min_num_params),
          Precision::master_weights ? c10::ScalarType::Float : c10::ScalarType::Undefined,
          Placement::offloads_parameters ? offload : nullptr,
          deferred,
          state.device()};
      return std::make_unique<ShardedParallel>(std::move(module), state.communicator(), options.ddp,
                                               options.sharded, plan, wire);
    } else {
      return std::make_unique<DataParallel>(std::move(module), state.communicator(), options.ddp,
                                            wire);
    }
  }

  static auto make_scaler(const AcceleratorOptions& run_time) {
    if constexpr (Precision::needs_scaler)
      return GradScaler(run_time.grad_scaler);
    else
      return Nothing{};
  }

  [[nodiscard]] int64_t count_over_ranks(int64_t mine) const {
    return state.communicator().all_sum(mine);
  }

  void weigh_window() {
    const auto weight = weight_of(counted_);
    step.window().set_weight(weight);
    note_items_of_window(weight > 0);
    weighed_ = true;
  }

  /// Ranks that stepped on gradients of their own have scales of their own; the sum of gradients
  /// needs one. The smallest is safe everywhere. What waits unreduced is brought to it. Every rank
  /// must call this.
  void agree_on_scale() {
    scales_differ_ = false;
    const auto mine = scaler.state();
    const auto least = state.communicator().all_reduce(
        at::tensor({mine.scale, static_cast<double>(mine.growth_tracker)}), Reduction::min);
    const GradScalerState agreed{least[0].template item<double>(),
                                 static_cast<int64_t>(least[1].template item<double>())};
    scaler.adopt(agreed);
    if (agreed.scale == mine.scale) return;
    const at::NoGradGuard no_grad;
    for (const auto& optimizer : optimizers)
      if (!optimizer->unscaled)
        for (auto& gradient : held_gradients(optimizer->parameters))
          gradient.mul_(agreed.scale / mine.scale);
  }

  [[nodiscard]] double weight_of(int64_t mine) {
    before(JoinedCall::count);
    const auto all = count_over_ranks(mine);
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
    counted_ = 0;
    weighed_ = false;
    begin_window();
  }

  bool inside_ = false;
  bool stepped_ = false;        ///< an optimizer, since the scale was last updated,
  bool stepped_alone_ = false;  ///< while a model was in a scope of no_sync
  bool scales_differ_ = false;  ///< on other ranks, perhaps
  bool weighed_ = false;        ///< this window, whose losses are sums
  bool counted_here_ = false;   ///< in this micro-batch
  int64_t counted_ = 0;         ///< items of this window's losses, on this rank
  uint64_t loader_ = 0;         ///< the iteration that this window was opened in
};

}  // namespace accel
