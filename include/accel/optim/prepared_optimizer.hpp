// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A handle to the user's optimizer that steps where a window closes, with a fused kernel where
// there is one, and not at all where the scaler found an overflow. The user's object keeps its
// options, groups and state, which are read at every step. Comes after engine/context.hpp and
// fused.hpp; lr_scheduler.hpp follows it.
#pragma once

#include <accel/engine/context.hpp>
#include <accel/optim/fused.hpp>
#include <accel/optim/offloaded_state.hpp>
#include <accel/optim/optimizer_pieces.hpp>

#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

namespace detail {
/// Throws Error(usage) for an optimizer whose step evaluates the loss itself.
void refuse_closures(const torch::optim::Optimizer& optimizer);
/// Throws Error(usage) for a parameter of a group that an earlier group has too: it would be stepped
/// twice.
void refuse_repeated(const std::vector<at::Tensor>& earlier, const std::vector<at::Tensor>& group,
                     std::size_t number);
}  // namespace detail

/// What the step does to one optimizer; shared by the handles of one optimizer. Of sharded
/// parameters it steps this rank's pieces.
template <class Optimizer, class Precision, bool shards>
class OptimizerKernel {
  /// Pieces of another type than their parameter's are copies in that type already.
  static constexpr bool has_masters = Precision::master_weights && !shards;

 public:
  explicit OptimizerKernel(std::shared_ptr<Optimizer> optimizer)
      : optimizer_(std::move(optimizer)), record_(std::make_shared<OptimizerRecord>()) {
    record_->optimizer = optimizer_.get();
    detail::refuse_closures(*optimizer_);
    refresh();
  }

  /// Whether the optimizer holds what this object knows of it: not so for another one at the same
  /// address.
  [[nodiscard]] bool is_current() const {
    std::vector<at::Tensor> known, held;
    if constexpr (shards)
      for (const auto& parameter : record_->parameters)
        known.push_back(detail::local_piece(parameter));
    else
      for (const auto& pair : known_pairs()) known.push_back(pair.first);
    for (const auto& group : optimizer_->param_groups())
      held.insert(held.end(), group.params().begin(), group.params().end());
    return same_tensors(known, unique_tensors(held));
  }

  [[nodiscard]] Optimizer& optimizer() const noexcept { return *optimizer_; }
  [[nodiscard]] const std::shared_ptr<Optimizer>& shared_optimizer() const noexcept {
    return optimizer_;
  }
  [[nodiscard]] OptimizerRecord& record() const noexcept { return *record_; }
  [[nodiscard]] const std::shared_ptr<OptimizerRecord>& shared_record() const noexcept {
    return record_;
  }

  /// The optimizer's own tensor of each parameter, and the model's.
  [[nodiscard]] std::vector<std::pair<at::Tensor, at::Tensor>> parameter_pairs() {
    refresh();
    if constexpr (has_masters) follow_parameters();
    return known_pairs();
  }

  /// Takes up groups that are new: all of them at first, later those of add_param_group. Throws
  /// Error(usage) for a parameter that another group has.
  void refresh() {
    auto& groups = optimizer_->param_groups();
    for (; groups_ < groups.size(); ++groups_) {
      // A tensor registered under two names may have been given twice; it is one parameter.
      auto& parameters = groups[groups_].params();
      parameters = unique_tensors(parameters);
      detail::refuse_repeated(record_->parameters, parameters, groups_);
      record_->parameters.insert(record_->parameters.end(), parameters.begin(), parameters.end());
      if constexpr (has_masters)
        for (auto& parameter : parameters) make_master(parameter);
    }
    // Of all groups: the model may have been prepared after the optimizer.
    if constexpr (shards)
      if (!whole_) detail::give_pieces(*optimizer_);
  }

  /// Makes the optimizer one of whole parameters with whole state, to be saved, loaded or handed
  /// back; or, with false, of pieces again. Every rank must call this.
  void assemble(bool whole)
    requires(shards)
  {
    refresh();
    if (whole)
      detail::give_wholes(*optimizer_, record_->parameters);
    else
      detail::take_pieces(*optimizer_, record_->parameters);
    whole_ = whole;  // pieces of state that are in memory now are moved by the next step
  }

  /// From now on state waits in a file.
  void offload_to(std::shared_ptr<detail::OffloadFile> file)
    requires(shards)
  {
    offloaded_.emplace(std::move(file));
    offloaded_->move(*optimizer_);
  }

  /// Gives the optimizer back: of the model's parameters again, where it had copies of them, with the
  /// state as it is. Pieces are to be assembled first.
  void release() {
    size_t next = 0;
    for (auto& group : optimizer_->param_groups())
      for (auto& own : group.params()) {
        if (next == record_->parameters.size())
          break;  // what was added since is the model's already
        const auto& parameter = record_->parameters[next++];
        if (own.is_same(parameter)) continue;
        detail::move_state(*optimizer_, own, parameter);
        own = parameter;
      }
    record_->parameters.clear();
    masters_.clear();
    groups_ = 0;
    whole_ = false;
  }

  void step() {
    refresh();
    if constexpr (has_masters) gradients_to_masters();
    // Pieces get what the user has made of the gradients since they were reduced.
    if constexpr (shards) (void)detail::follow_user_gradients(record_->parameters);
    step_where_it_waits();
    if constexpr (has_masters) masters_to_parameters();
    if constexpr (shards) detail::refresh_wholes(record_->parameters);
    // Inside one long autocast region the casts of the old weights would be taken for the new ones.
    if constexpr (Precision::compute_type != Precision::parameter_type) at::autocast::clear_cache();
  }

  /// Gradients that lie in a reducer's bucket are views, which the object's own zero_grad refuses.
  void zero_grad(bool set_to_none) {
    refresh();
    for (auto& parameter : record_->parameters) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        at::NoGradGuard no_grad;
        if constexpr (shards)
          for (auto& piece : detail::follow_user_gradients({parameter})) piece.zero_();
        else
          gradient.zero_();
      }
    }
  }

 private:
  void step_where_it_waits() {
    if constexpr (shards)
      if (offloaded_) return offloaded_->step(*optimizer_, [this] { step_optimizer(); });
    step_optimizer();
  }
  void step_optimizer() {
    if constexpr (has_fused_kernel<Optimizer>)
      fused_step(*optimizer_, scratch_);
    else
      static_cast<torch::optim::Optimizer&>(*optimizer_).step();
  }

  [[nodiscard]] std::vector<std::pair<at::Tensor, at::Tensor>> known_pairs() const {
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    if constexpr (has_masters)
      for (const auto& copy : masters_) pairs.emplace_back(copy.master, copy.parameter);
    else if constexpr (shards) {
      size_t next = 0;
      for (const auto& group : optimizer_->param_groups())
        for (const auto& own : group.params()) pairs.emplace_back(own, record_->parameters[next++]);
    } else
      for (const auto& parameter : record_->parameters) pairs.emplace_back(parameter, parameter);
    return pairs;
  }

  /// The optimizer is given an fp32 copy in place of a 16-bit parameter, so that its state is fp32
  /// too.
  void make_master(at::Tensor& parameter) {
    auto master = parameter.detach().to(at::kFloat).requires_grad_(parameter.requires_grad());
    detail::move_state(*optimizer_, parameter, master);
    masters_.push_back({parameter, master, parameter._version(), master._version()});
    parameter = master;
  }
  /// Somebody may have written into a parameter since the last step (loaded weights, the broadcast of
  /// ddp) and not into its copy: without this the copy would write the old value back. Where what was
  /// written is what the copy rounds to (averaged weights were there, and were taken out again), the
  /// copy keeps its bits.
  void follow_parameters() {
    const at::NoGradGuard no_grad;
    for (auto& [parameter, master, version, master_version] : masters_) {
      if (parameter._version() == version) continue;
      const auto unchanged = parameter == master.to(parameter.scalar_type());
      if (master._version() == master_version)
        master.copy_(at::where(unchanged, master, parameter.to(at::kFloat)));
      else if (!at::is_nonzero(unchanged.all()))
        continue;  // of two writes the copy's counts
      version = parameter._version();
      master_version = master._version();
    }
  }
  void gradients_to_masters() {
    follow_parameters();
    for (auto& [parameter, master, version, master_version] : masters_) {
      auto& gradient = master.mutable_grad();
      if (parameter.grad().defined())
        gradient = parameter.grad().to(at::kFloat);
      else
        gradient.reset();
    }
  }
  void masters_to_parameters() {
    at::NoGradGuard no_grad;
    for (auto& [parameter, master, version, master_version] : masters_) {
      master.mutable_grad().reset();  // a copy of the parameter's, as large as the master
      parameter.copy_(master);
      version = parameter._version();
      master_version = master._version();
    }
  }

  /// A 16-bit parameter and its fp32 copy, as they were when the two were last the same value.
  struct Master {
    at::Tensor parameter;
    at::Tensor master;
    int64_t version;
    int64_t master_version;
  };

  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<OptimizerRecord> record_;
  size_t groups_ = 0;   ///< taken up so far
  bool whole_ = false;  ///< not of pieces, for a while
  std::vector<Master> masters_;
  FusedScratch scratch_;
  struct Nothing {};
  [[no_unique_address]] std::conditional_t<shards, std::optional<detail::OffloadedState>, Nothing>
      offloaded_;
};

/// What `prepare` returns for an optimizer. Copies share it.
template <class Optimizer, class Precision, class Context>
class PreparedOptimizer {
 public:
  using Kernel = OptimizerKernel<Optimizer, Precision, Context::shards>;

  PreparedOptimizer(std::shared_ptr<Kernel> kernel, std::shared_ptr<Context> context)
      : kernel_(std::move(kernel)), context_(std::move(context)) {}

  /// Steps if this micro-batch closes its window; else does nothing. A window whose losses were sums
  /// over no items is skipped and, with a scaler, one whose gradients overflowed.
  void step() {
    context_->weigh_late();
    if (kernel_->record().counted_nothing) {
      kernel_->record().skipped = context_->step.sync_gradients();
      return;
    }
    kernel_->refresh();
    if (context_->step.sync_gradients()) {
      if constexpr (Context::reduces) context_->require_reduced(kernel_->record());
      context_->require_fresh(kernel_->record());
      kernel_->record().stepped = true;
    }
    if constexpr (!Precision::needs_scaler) kernel_->record().skipped = false;
    if constexpr (Context::offloads)
      step_or_tell();
    else
      context_->step.step(*kernel_, *context_);
    if (!context_->inside() && context_->step.sync_gradients()) context_->share_buffers();
  }

  /// Clears the gradients if this micro-batch closes its window; else does nothing, since they are
  /// being added to. Cleared means undefined, as in Python, unless `set_to_none` is false.
  void zero_grad(bool set_to_none = true) {
    context_->step.zero_grad(*kernel_, set_to_none);
    if (context_->step.sync_gradients()) context_->cleared(kernel_->record());
  }

  /// Whether the last step was skipped: a gradient was not finite, or there was nothing to count.
  [[nodiscard]] bool step_was_skipped() const noexcept { return kernel_->record().skipped; }

  /// The user's optimizer.
  [[nodiscard]] Optimizer& unwrap() const noexcept { return kernel_->optimizer(); }
  [[nodiscard]] const std::shared_ptr<Optimizer>& shared() const noexcept {
    return kernel_->shared_optimizer();
  }
  Optimizer* operator->() const noexcept { return &kernel_->optimizer(); }
  [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup>& param_groups() const noexcept {
    return kernel_->optimizer().param_groups();
  }

 private:
  /// A disk may be full on one rank's host only.
  void step_or_tell() {
    try {
      context_->step.step(*kernel_, *context_);
    } catch (const std::exception& failure) {
      context_->state.communicator().leave_word(failure.what());
      throw;
    }
  }

  std::shared_ptr<Kernel> kernel_;
  std::shared_ptr<Context> context_;
};

}  // namespace accel
