// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What was prepared, and what is known of its gradients: which are reduced over the ranks, which are
// corrected for a short window or without the loss scale, which are still to be. Errors where a step
// would take gradients of two kinds. Knows no policy but what keeps a model's ranks together, a
// DataParallel or a ShardedParallel; context.hpp is one of these.
#pragma once

#include <accel/comm/partial_state.hpp>
#include <accel/engine/accelerator_options.hpp>
#include <accel/engine/check_finite.hpp>
#include <accel/engine/ddp.hpp>
#include <accel/engine/deferred_init.hpp>
#include <accel/engine/recomputed_units.hpp>
#include <accel/engine/sharded/sharded_parallel.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace accel {

/// An optimizer that was prepared, as far as the window is concerned.
struct OptimizerRecord {
  const void* optimizer = nullptr;  ///< whose it is
  std::function<void()> refresh;    ///< takes up groups that were added since
  /// The fp32 copies that it steps, each with its 16-bit parameter; empty where it has none. Of what
  /// is sharded only while it is whole.
  std::function<std::vector<std::pair<at::Tensor, at::Tensor>>()> masters;
  std::function<void(bool)> assemble;  ///< where parameters are sharded: into a whole, and back
  std::function<void()> release;       ///< puts the model's parameters in the place of copies
  std::vector<at::Tensor> parameters;  ///< of the model, each once
  bool unscaled = false;               ///< in this window
  bool finite = true;                  ///< what unscaling found
  bool skipped = false;                ///< its last step
  bool stepped = false;                ///< since its gradients were cleared or the window began
  bool stale = false;            ///< gradients were added to those of the step before clearing them
  bool counted_nothing = false;  ///< its gradients are of sums over no items, on no rank
  int64_t cleared_at = 0;        ///< reductions when its gradients were last cleared
  size_t owned = 0;              ///< of its parameters, those whose models are known:
  int64_t owned_among = -1;      ///< the models as they were when that was looked up
  std::vector<const torch::nn::Module*> owners;
};

/// A model that was prepared.
template <class Replica>
struct ModelRecord {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;                     ///< each once
  std::unique_ptr<Replica> replica{};                     ///< where the backend reduces
  std::unique_ptr<GradientWatch> watch{};                 ///< from its first check_finite on
  std::shared_ptr<detail::RecomputedUnits> recomputed{};  ///< where the placement recomputes
  int suspended = 0;                                      ///< scopes of no_sync that it is in
  bool local = false;      ///< has gradients of this window that were not reduced
  int64_t reduced_at = 0;  ///< the number of its last reduction
};

/// The models and optimizers of an accelerator.
template <class Replica>
class PreparedObjects {
 public:
  using MakeReplica = std::function<std::unique_ptr<Replica>(std::shared_ptr<torch::nn::Module>,
                                                             const detail::DeferredTensors&)>;

  PreparedObjects(PartialState processes, AcceleratorOptions run_time)
      : state(std::move(processes)), options(std::move(run_time)) {}

  PartialState state;
  AcceleratorOptions options;
  std::vector<ModelRecord<Replica>> models;
  std::vector<std::shared_ptr<OptimizerRecord>> optimizers;

  /// The modules, in the order in which they were prepared.
  [[nodiscard]] std::vector<std::shared_ptr<torch::nn::Module>> modules() const {
    std::vector<std::shared_ptr<torch::nn::Module>> all;
    for (const auto& model : models) all.push_back(model.module);
    return all;
  }

  /// Gives a module its place: device, dtype, and (where there is something to make a replica) the
  /// same values on every rank. A module that has its place already is left alone; one with other
  /// parameters than before (another object at the same address, or a module that has grown) and one
  /// whose last backward threw are taken up anew. With replicas every rank must call this.
  void adopt(const std::shared_ptr<torch::nn::Module>& module, bool place, c10::ScalarType type,
             const MakeReplica& make);

  // Around a backward, where the backend reduces.

  /// Before one that reduces: the models that its loss was computed with.
  void arm(const at::Tensor& loss);
  /// After it.
  void reduced();
  /// Before one that does not.
  void keep_local(const at::Tensor& loss);
  /// After one that threw: its models are to be prepared again. Throws Error(collective) where their
  /// reduction was the cause.
  void failed(const std::exception& failure);
  /// Whether a backward that closes no window reduces too: where the options say so, and the first
  /// of a static graph, since c10d counts from there on what a backward does.
  [[nodiscard]] bool sync_each_batch() const noexcept;

  /// Enters (1) or leaves (-1) a scope in which a model is not reduced; null stands for all models.
  void suspend_reduction(const torch::nn::Module* module, int by) noexcept;

  /// Ranks train with buffers of their own (running statistics); at the end of a window rank 0's are
  /// everybody's. Not before: a graph that is still to be run backward may have saved them.
  void share_buffers();

  /// Backward passes that were reduced so far, each model's counted.
  [[nodiscard]] int64_t reductions() const noexcept;

  // What a step may take.

  /// Throws Error(usage) where some of these parameters have gradients of the earlier micro-batches
  /// of a closing window only, which no backward has reduced.
  void require_reduced(const std::vector<at::Tensor>& parameters) const;
  /// The same before an optimizer's step. Throws also where gradients came from no
  /// `accelerator.backward` at all, and where a parameter is of no prepared model: what is not
  /// reduced drifts apart.
  void require_reduced(OptimizerRecord& optimizer) const;
  /// Throws Error(usage) where the backward of `loss` would add to gradients that are already
  /// without the loss scale, or corrected for a short window: the sum would be of two kinds.
  void require_unfinished(const at::Tensor& loss);
  /// Throws Error(usage) where that has happened since an optimizer's last step.
  void require_fresh(const OptimizerRecord& optimizer) const;

  /// Multiplies gradients by what makes them those of a short window, once a window.
  void correct(const std::vector<at::Tensor>& parameters, double factor);
  /// Throws Error(numeric) on every rank where one of them has a value in a module's parameters or
  /// gradients that is not finite. Every rank must call this, but for those that join.
  void check_finite(const torch::nn::Module& module, int64_t step, const CallSite& where);
  /// Multiplies the gradients of all models, which no backward has reduced yet.
  void correct_unreduced(double factor);
  /// Says that an optimizer's gradients were cleared: what comes now is new.
  void cleared(OptimizerRecord& optimizer);

  /// What the communication hook of a module remembers of past gradients; null where it remembers
  /// nothing.
  [[nodiscard]] PowerSgd* power_sgd_of(const torch::nn::Module& module) const;
  /// What the hooks of all models remember on this rank, each name behind the number of its model
  /// ("0."); empty where no hook does.
  [[nodiscard]] std::vector<NamedParameter> hook_state() const;
  /// Checks such a state (with `own`, this rank's; else another's) and returns what takes it up.
  /// Throws Error(checkpoint) for one that is none.
  [[nodiscard]] std::function<void()> plan_hook_state(const std::vector<NamedParameter>& saved,
                                                      bool own) const;

  /// Makes the parameters of a module the mean over the ranks of what they have: those that an
  /// optimizer steps, which may be fp32 copies, and from these the module's. Every rank must call
  /// this.
  void average_parameters(const torch::nn::Module& module, const CallSite& where);

  // Loops that end at different times on different ranks (Accelerator::join_uneven_inputs): a rank
  // that has a batch says before each call to the others which one it is, so that those that have
  // none make it too, a reduction with a loss of zero.

  /// Begins or ends that. One model, since a rank without a batch cannot know which one it would be.
  void join(bool joining);
  [[nodiscard]] bool windows_differ() const noexcept { return joining_; }

 protected:
  /// What a loop does with the other ranks; `none` where it is over.
  enum class JoinedCall : int64_t { none, count, scale, reduction, buffers };

  /// Says that inside a join; outside nothing happens.
  void before(JoinedCall call) {
    if (joining_) (void)announce(call);
  }
  /// Says it, and returns what the ranks do that have a batch. Every rank must call this. Throws
  /// Error(collective) where they do different things.
  JoinedCall announce(JoinedCall mine);

  /// Takes part in one reduction of the other ranks.
  void shadow();
  /// Gives every rank the buffers of rank `source_`.
  void send_buffers();

  /// The models that a loss was computed with and that are not in a scope of no_sync. One model
  /// needs no search.
  [[nodiscard]] std::vector<ModelRecord<Replica>*> models_of(const at::Tensor& loss);
  /// Whether some model is in a scope of no_sync.
  [[nodiscard]] bool is_any_suspended() const noexcept;

  /// Says of the optimizers whose parameters a loss was computed with, before its backward, whether it
  /// is a loss over any item at all. One without leaves them nothing to step on, unless they have
  /// gradients already. Every rank must call this.
  void note_items(const at::Tensor& loss, bool any);
  /// The same for all losses of a window, and all optimizers.
  void note_items_of_window(bool any) noexcept {
    for (const auto& optimizer : optimizers) optimizer->counted_nothing = !any;
  }

  /// Begins a window: nothing is done to its gradients yet.
  void begin_window();
  /// Clears all gradients, and forgets what was done to them.
  void clear_gradients();
  /// A tensor that an optimizer stepped, and the parameter that it is a copy of.
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

  /// Lets go of what was prepared, and returns the copies that optimizers had. Sharded modules become
  /// whole: then every rank must call this.
  Copies forget_objects();

  /// Makes sharded models and optimizers whole, to be saved or loaded. Every rank must call this.
  void assemble();
  /// Splits them again. Local.
  void disassemble();

  /// What keeps a module's ranks together; null for one that was not prepared.
  [[nodiscard]] Replica* replica_of(const torch::nn::Module& module) const;

  /// What this rank holds of the gradients of some parameters.
  [[nodiscard]] static std::vector<at::Tensor> held_gradients(
      const std::vector<at::Tensor>& parameters);

  int source_ = 0;  ///< the rank whose buffers are everybody's

 private:
  [[nodiscard]] bool is_suspended(const ModelRecord<Replica>& model) const noexcept {
    return suspended_ > 0 || model.suspended > 0;
  }
  void arm(const std::vector<ModelRecord<Replica>*>& reached, const at::Tensor& loss);
  /// Looks up which models an optimizer's parameters are of.
  void find_owners(OptimizerRecord& optimizer) const;

  std::vector<ModelRecord<Replica>*> armed_;
  std::unordered_set<const c10::TensorImpl*> corrected_;  ///< parameters, in this window
  bool buffers_differ_ = false;
  bool joining_ = false;
  int suspended_ = 0;       ///< scopes of no_sync of all models
  int64_t reductions_ = 0;  ///< backward passes that reduced
  int64_t models_version_ = 0;
};

extern template class PreparedObjects<DataParallel>;
extern template class PreparedObjects<ShardedParallel>;

}  // namespace accel
