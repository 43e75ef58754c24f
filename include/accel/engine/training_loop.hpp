// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a training loop calls in each micro-batch: accumulate, backward, clipping, and the questions
// about the window. The order of things in a step is step.hpp, what they mean for tensors is
// context.hpp; this file gives them the names that a loop reads. The accelerator is one of these.
#pragma once

#include <accel/detail/error.hpp>
#include <accel/engine/autocast.hpp>
#include <accel/engine/check_finite.hpp>
#include <accel/engine/context.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/norms.hpp>
#include <accel/engine/prepared_model.hpp>
#include <accel/policies.hpp>

#include <ATen/ATen.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

/// The members of an accelerator that act on the current window.
template <class Backend, class Precision, class Accumulation, class Placement>
class TrainingLoop {
 public:
  using Shared = Context<Backend, Precision, Accumulation, Placement>;
  template <class Module>
  using Model = PreparedModel<Module, Precision, Shared>;

  /// Runs `body` as one micro-batch: `accumulate(body)`, or Accelerate's `accumulate(model, body)`,
  /// where the models are for the reader; every prepared model takes part. Inside it, the members of
  /// prepared optimizers and schedules act only where the window closes, and gradients are reduced
  /// only there.
  template <class... ModelsAndBody>
  void accumulate(ModelsAndBody&&... models_and_body) {
    constexpr auto models = sizeof...(ModelsAndBody) - 1;
    auto arguments = std::forward_as_tuple(std::forward<ModelsAndBody>(models_and_body)...);
    using Arguments = decltype(arguments);
    [&]<size_t... I>(std::index_sequence<I...>) {
      static_assert(
          (is_prepared_model<std::remove_cvref_t<std::tuple_element_t<I, Arguments>>> && ...),
          "accel: accumulate(models..., body) needs models that prepare returned before its body");
    }(std::make_index_sequence<models>());
    static_assert(std::invocable<std::tuple_element_t<models, Arguments>>,
                  "accel: accumulate(models..., body) needs a body that takes no arguments, as its "
                  "last argument");
    shared_->step.accumulate(std::get<models>(arguments), *shared_);
  }

  /// Computes gradients of a loss that is a mean over its samples: divided over the window, scaled
  /// if the precision asks for it, reduced over the ranks if this micro-batch closes the window.
  /// Every rank must call this.
  void backward(const at::Tensor& loss, bool retain_graph = false,
                const CallSite& where = CallSite::current()) {
    before_backward(where);
    shared_->take_mean(loss);
    run_backward(loss, retain_graph);
  }

  /// The same for a loss that is a sum over `count` items (tokens, say), which may differ between
  /// micro-batches and ranks: the gradients become those of the mean over all items of the window
  /// and of all ranks, as if they had been one batch. Counts are summed exactly. Where there is no
  /// item at all, the optimizer does not step. In a window of several micro-batches each has one such
  /// loss; with `accumulate<1>` every loss is weighted by its own count. Every rank must call this; a
  /// rank without items passes a sum of none and 0. Throws Error(usage) for a negative count and, in
  /// a window of several, for a second count in one micro-batch or a loss without one.
  template <std::integral Count>
    requires(!std::same_as<Count, bool>)
  void backward(const at::Tensor& loss_sum, Count count, bool retain_graph = false,
                const CallSite& where = CallSite::current()) {
    before_backward(where);
    if (std::cmp_less(count, 0) || !std::in_range<int64_t>(count))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: backward was given a loss over {} items; give the number that "
                   "the loss is a sum over, from 0",
                   state().process_index(), count);
    const double weight = shared_->weigh(loss_sum, static_cast<int64_t>(count));
    run_backward(weight == 1.0 ? loss_sum : loss_sum * weight, retain_graph);
  }
  /// A count is a whole number; one of another type would be taken for `retain_graph`.
  template <std::floating_point Count>
  void backward(const at::Tensor&, Count, bool = false) {
    static_assert(
        !std::floating_point<Count>,
        "accel: backward(loss_sum, count) needs a whole number as its count; use an integer, such "
        "as mask.sum().item<int64_t>()");
  }
  /// With a count that is a tensor of one integer, such as `mask.sum()`.
  void backward(const at::Tensor& loss_sum, const at::Tensor& count, bool retain_graph = false,
                const CallSite& where = CallSite::current()) {
    if (count.numel() != 1 || !at::isIntegralType(count.scalar_type(), /*includeBool=*/true))
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: backward was given a count of type {} and {} elements; give one "
          "integer, such as mask.sum()",
          state().process_index(), c10::toString(count.scalar_type()), count.numel());
    backward(loss_sum, count.item<int64_t>(), retain_graph, where);
  }

  /// Whether this micro-batch closes its window; outside `accumulate`, whether the last one did
  /// (true before the first).
  [[nodiscard]] bool sync_gradients() const noexcept { return shared_->step.sync_gradients(); }

  [[nodiscard]] int64_t gradient_accumulation_steps() const noexcept {
    return shared_->step.window().steps();
  }
  /// From the next window on.
  void set_gradient_accumulation_steps(int64_t steps)
    requires(!Accumulation::is_static)
  {
    if (steps < 1 || shared_->step.window().is_open())
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: gradient_accumulation_steps can be set to a number from 1 "
                   "between windows, and was set to {} after {} micro-batches of one",
                   state().process_index(), steps,
                   shared_->step.window().is_open() ? shared_->step.window().seen() : 0);
    shared_->step.window().set_steps(steps);
  }

  /// Clips the joint norm of a model's gradients (or of a list of parameters) and returns what it
  /// was (0-dim), once a window: inside one it does nothing and returns NaN. Gradients are unscaled
  /// first, with all others of the same optimizer. Local, since every rank has the same gradients; with
  /// sharded<...> every rank must call this.
  template <class Model>
  at::Tensor clip_grad_norm_(const Model& model, double max_norm, double norm_type = 2.0) {
    if (!(max_norm >= 0))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: gradients cannot be clipped to a norm of {}",
                   state().process_index(), max_norm);
    require_norm_type(norm_type);
    if (!sync_gradients()) return at::full({}, std::numeric_limits<double>::quiet_NaN());
    const auto parameters = parameters_of(model);
    finish(parameters);
    const auto gradients = shared_->held_gradients(parameters);
    const auto norm = norm_of(parameters, gradients, norm_type);
    scale_to_norm_(gradients, norm, max_norm);
    return norm;
  }

  /// The joint norm of a model's gradients (0-dim), which stay as they are: NaN inside a window, and
  /// unscaled first, as with clip_grad_norm_. Local; with sharded<...> every rank must call this.
  template <class Model>
  at::Tensor grad_norm(const Model& model, double norm_type = 2.0) {
    require_norm_type(norm_type);
    if (!sync_gradients()) return at::full({}, std::numeric_limits<double>::quiet_NaN());
    const auto parameters = parameters_of(model);
    finish(parameters);
    return norm_of(parameters, shared_->held_gradients(parameters), norm_type);
  }

  /// Throws Error(numeric), on every rank, where a parameter of a model or a gradient of it has a NaN
  /// or an infinity on one: see check_finite.hpp. Inside a window, whose gradients are each rank's
  /// own, it does nothing. From its first call on the gradients of the model are looked at before they
  /// are reduced, so that the error names the rank that a NaN came from. Every rank must call this;
  /// in join_uneven_inputs it is local.
  template <class Module>
  void check_finite(const Model<Module>& model, int64_t step,
                    const CallSite& where = CallSite::current()) const {
    if (sync_gradients()) shared_->check_finite(*model, step, where);
  }

  /// Clamps a model's gradients to [-clip_value, clip_value]; inside a window it does nothing.
  template <class Model>
  void clip_grad_value_(const Model& model, double clip_value) {
    if (!(clip_value >= 0))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: gradients cannot be clipped to values of at most {}; give the "
                   "greatest magnitude, from 0",
                   state().process_index(), clip_value);
    if (!sync_gradients()) return;
    const auto parameters = parameters_of(model);
    finish(parameters);
    clip_value_(shared_->held_gradients(parameters), clip_value);
  }

  /// Makes the gradients of every prepared optimizer what they are without the loss scale and the
  /// window, for code that reads them before the step. Once a window, however often it is called;
  /// inside a window it does nothing. What a later backward adds is not unscaled: with several
  /// models, call it after the last one.
  void unscale_gradients() {
    if (!sync_gradients()) return;
    for (const auto& optimizer : shared_->optimizers) finish(optimizer->parameters);
  }

  /// A scope in which this thread computes as the precision says. Where that is without autocast,
  /// the scope changes nothing; `enabled` false switches autocast off in every case.
  [[nodiscard]] AutocastScope autocast(bool enabled = true) const {
    constexpr bool casts = Precision::compute_type != Precision::parameter_type;
    const auto device = state().device().type();
    if (!casts && enabled) return AutocastScope(device);
    return {device, scalar_type(casts ? Precision::compute_type : element_type::bfloat16), enabled};
  }

  /// A scope in which backward does not reduce a model (every model, if none is named): its
  /// gradients stay local and add up. Needs a backend that keeps whole gradients.
  [[nodiscard]] auto no_sync()
    requires ReducesOncePerWindow<Backend>
  {
    return Unreduced(shared_, nullptr);
  }
  template <class Module>
  [[nodiscard]] auto no_sync(const Model<Module>& model)
    requires ReducesOncePerWindow<Backend>
  {
    return Unreduced(shared_, model.unwrap().get());
  }

  /// A scope in which a model's parameters are whole on every rank, and their memory may be used
  /// directly. What was written to them, in whatever way, is kept at its end unless `writeback` is
  /// false: of each value what the rank wrote that holds it. Not around forward or backward. Every
  /// rank must open and leave it. PyTorch's name.
  template <class Module>
  [[nodiscard]] auto summon_full_params(const Model<Module>& model, bool writeback = true) {
    if constexpr (Shared::shards)
      return Summoned(shared_, *model, writeback);
    else
      return Whole{};
  }

  /// What sharded<...> holds of a model, in bytes. Local.
  template <class Module>
  [[nodiscard]] ShardingReport sharding_report(const Model<Module>& model) const
    requires(Backend::shards_optimizer_state)
  {
    const auto* replica = shared_->replica_of(*model);
    return replica ? replica->report() : ShardingReport{};
  }

  /// What recomputed<...> has done with the units of a model so far. Local.
  template <class Module>
  [[nodiscard]] RecomputeReport recompute_report(const Model<Module>& model) const
    requires(Placement::recomputes)
  {
    const auto units = shared_->recomputed_units_of(*model);
    return units ? units->report() : RecomputeReport{};
  }

  /// What offload<activations> has moved so far, for all models. Local.
  [[nodiscard]] OffloadReport offload_report() const
    requires(Placement::offloads_activations)
  {
    return shared_->activations->report();
  }

  /// Makes every parameter of a model the mean over the ranks of what they have, after steps inside
  /// no_sync: of 16-bit parameters the fp32 copies that the optimizer steps, where it has them.
  /// Buffers and the optimizer's state stay. Every rank must call this.
  template <class Module>
  void average_parameters(const Model<Module>& model, const CallSite& where = CallSite::current())
    requires(!Backend::shards_optimizer_state)
  {
    shared_->average_parameters(*model, where);
  }

  /// The loss scaler, where the precision has one.
  [[nodiscard]] GradScaler& scaler() const
    requires(Precision::needs_scaler)
  {
    if (!shared_->inside()) shared_->settle_scaler();
    return shared_->scaler;
  }
  /// Says that this rank wants something to happen, say to stop early: the next check_trigger() is
  /// true on every rank. Local.
  void set_trigger() noexcept { triggered_ = true; }
  /// Whether any rank has called set_trigger() since the last check. Every rank must call this.
  [[nodiscard]] bool check_trigger(const CallSite& where = CallSite::current()) {
    return state().communicator().all_sum(std::exchange(triggered_, false) ? 1 : 0, where) > 0;
  }

  /// Whether any optimizer skipped its last step.
  [[nodiscard]] bool optimizer_step_was_skipped() const noexcept {
    for (const auto& optimizer : shared_->optimizers)
      if (optimizer->skipped) return true;
    return false;
  }
  /// Backward passes that were reduced over the ranks so far.
  [[nodiscard]] int64_t reductions() const noexcept { return shared_->reductions(); }

 protected:
  explicit TrainingLoop(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::shared_ptr<Shared> shared_;

 private:
  /// What ranks tell each other in debug mode before a reduction; while they join, some may be in
  /// none.
  void before_backward(const CallSite& where) {
    if constexpr (Backend::distributed)
      if (sync_gradients() && !shared_->windows_differ())
        state().communicator().compare_calls("backward", where);
  }

  void run_backward(const at::Tensor& loss, bool retain_graph) {
    if constexpr (Shared::finishes_gradients)
      if (sync_gradients()) shared_->require_unfinished(loss);
    const auto run = [&] {
      shared_->step.backward(loss, *shared_, at::Tensor(), std::optional<bool>(retain_graph));
    };
    if constexpr (Backend::distributed) {
      try {
        run();
      } catch (const std::exception& failure) {
        shared_->failed(failure);
        throw;
      }
    } else {
      run();
    }
  }

  void require_norm_type(double norm_type) const {
    if (std::isnan(norm_type))
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: there is no norm of type {}; give its exponent, such as 2.0, or "
          "an infinity for the greatest magnitude",
          state().process_index(), norm_type);
  }

  /// Makes these parameters' gradients those of the whole window, without the loss scale.
  void finish(const std::vector<at::Tensor>& parameters) {
    if constexpr (Backend::distributed) shared_->require_reduced(parameters);
    shared_->weigh_late();
    shared_->step.finish_gradients(parameters, *shared_);
    if constexpr (Precision::needs_scaler)
      for (const auto& optimizer : shared_->optimizers)
        if (have_common(optimizer->parameters, parameters)) shared_->unscale(*optimizer);
  }

  /// The joint norm of gradients of which this rank holds all, or its part.
  static at::Tensor norm_of([[maybe_unused]] const std::vector<at::Tensor>& parameters,
                            const std::vector<at::Tensor>& gradients, double norm_type) {
    if constexpr (Shared::shards)
      return joint_norm_of_pieces(detail::group_of(parameters), gradients, norm_type);
    else
      return joint_norm(gradients, norm_type);
  }

  /// A scope of summon_full_params; of a backend that holds whole parameters, nothing.
  struct Whole {
    Whole() = default;
    ~Whole() {}  // so that a scope that does nothing is no unused variable
  };
  class Summoned {
   public:
    Summoned(std::shared_ptr<Shared> shared, const torch::nn::Module& module, bool writeback)
        : shared_(std::move(shared)),
          module_(module),
          edits_(writeback ? detail::Edits::keep : detail::Edits::discard) {
      if (auto* replica = shared_->replica_of(module_)) replica->hold(edits_);
    }
    Summoned(const Summoned&) = delete;
    Summoned& operator=(const Summoned&) = delete;
    ~Summoned() {
      // Looked up again: free_memory may have been called in the scope.
      if (auto* replica = shared_->replica_of(module_)) replica->unhold(edits_);
    }

   private:
    std::shared_ptr<Shared> shared_;
    const torch::nn::Module& module_;
    detail::Edits edits_;
  };

  /// A scope of no_sync.
  class Unreduced {
   public:
    Unreduced(std::shared_ptr<Shared> shared, const torch::nn::Module* module)
        : shared_(std::move(shared)), module_(module) {
      shared_->suspend_reduction(module_, 1);
    }
    Unreduced(const Unreduced&) = delete;
    Unreduced& operator=(const Unreduced&) = delete;
    ~Unreduced() { shared_->suspend_reduction(module_, -1); }

   private:
    std::shared_ptr<Shared> shared_;
    const torch::nn::Module* module_;
  };

  template <class Module>
  static std::vector<at::Tensor> parameters_of(const Model<Module>& model) {
    return unique_tensors(model.unwrap()->parameters());
  }
  static std::vector<at::Tensor> parameters_of(const std::vector<at::Tensor>& parameters) {
    return unique_tensors(parameters);
  }

  [[nodiscard]] const PartialState& state() const noexcept { return shared_->state; }

  bool triggered_ = false;
};

}  // namespace accel
