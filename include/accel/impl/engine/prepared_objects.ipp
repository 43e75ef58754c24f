// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/prepared_objects.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/local_sgd.hpp>
#include <accel/engine/replica.hpp>
#include <accel/engine/sharded/unit_gatherer.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <concepts>
#include <limits>
#include <string_view>
#include <utility>

namespace accel {

namespace {

/// Throws Error(usage) for a parameter on meta that nothing will give values.
void require_values(const torch::nn::Module& module, const detail::DeferredTensors& deferred) {
  for (const auto& [name, parameter] : unique_parameters(module))
    if (parameter.is_meta() && std::ranges::none_of(deferred, [&own = name](const auto& each) {
          return each.first == own;
        }))
      detail::fail(ErrorCategory::usage,
                   "accel: '{}' is on meta, without values; construct the module inside "
                   "accel::deferred_init, and change nothing about it before prepare",
                   name);
}

/// Whether ranks hold parts of a model only.
template <class Replica>
constexpr bool is_sharding = std::same_as<Replica, ShardedParallel>;

}  // namespace

template <class Replica>
void PreparedObjects<Replica>::adopt(const std::shared_ptr<torch::nn::Module>& module, bool place,
                                     c10::ScalarType type, const MakeReplica& make) {
  auto parameters = unique_tensors(module->parameters());
  ++models_version_;
  [[maybe_unused]] bool assembled_here = false;
  for (auto known = models.begin(); known != models.end(); ++known) {
    if (known->module != module) continue;
    const bool same = same_tensors(known->parameters, parameters);
    if constexpr (is_sharding<Replica>) {
      if (same && known->replica && known->replica->is_broken()) known->replica->recover();
    }
    const bool works = !known->replica || !known->replica->is_broken();
    if (works && same) return;
    if constexpr (is_sharding<Replica>) {
      // Its values go with it otherwise.
      for (const auto& optimizer : optimizers)
        if (optimizer->assemble) optimizer->assemble(true);
      known->replica->unshard();
      assembled_here = true;
    }
    models.erase(known);
    break;
  }
  for (const auto& other : models)
    if (make && have_common(other.parameters, parameters))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the models {} and {} share parameters, and each model's are "
                   "reduced apart; prepare one module that holds both",
                   state.process_index(), other.module->name(), module->name());
  auto deferred = detail::deferred_tensors(*module);
  if constexpr (!is_sharding<Replica>) {
    if (!deferred.empty()) materialize(*module);
    deferred.clear();
  }
  // One process that places nothing may leave a module there.
  if (!state.device().is_meta() && (place || make)) require_values(*module, deferred);
  if (place && deferred.empty()) module->to(state.device());
  if (type != c10::ScalarType::Float) cast_floating_(*module, type);
  ModelRecord<Replica> record{module, std::move(parameters)};
  if (make) record.replica = make(module, deferred);
  models.push_back(std::move(record));
  if constexpr (is_sharding<Replica>)
    if (assembled_here)
      for (const auto& optimizer : optimizers)
        if (optimizer->assemble) optimizer->assemble(false);
}

template <class Replica>
void PreparedObjects<Replica>::arm(const at::Tensor& loss) {
  armed_.clear();
  const auto reached = models_of(loss);
  if constexpr (is_sharding<Replica>)
    for (const auto& model : models)
      if (is_suspended(model)) model.replica->require_cleared();
  if (!reached.empty()) before(JoinedCall::reduction);
  // A rank whose loop is over does not step, until it is given what the others have.
  if constexpr (!is_sharding<Replica>)
    if (state.communicator().debugging() && !joining_)
      for (const auto* model : reached)
        if (!model->replica->is_broken())
          detail::require_same_values(state.communicator(), unique_parameters(*model->module));
  arm(reached, loss);
}

template <class Replica>
void PreparedObjects<Replica>::arm(const std::vector<ModelRecord<Replica>*>& reached,
                                   const at::Tensor& loss) {
  for (auto* model : reached) {
    model->replica->arm(loss);
    armed_.push_back(model);
  }
}

template <class Replica>
void PreparedObjects<Replica>::reduced() {
  const auto armed = std::exchange(armed_, {});
  ++reductions_;
  try {
    for (auto* model : armed) {
      model->replica->finish();
      model->local = false;
      model->reduced_at = reductions_;
    }
  } catch (...) {
    for (auto* model : armed) model->replica->give_up();
    throw;
  }
  buffers_differ_ = buffers_differ_ || !armed.empty();
}

template <class Replica>
bool PreparedObjects<Replica>::sync_each_batch() const noexcept {
  if (options.sync_each_batch || !options.ddp.static_graph) return options.sync_each_batch;
  return std::ranges::any_of(models, [](const ModelRecord<Replica>& model) {
    return model.replica && model.replica->reductions() == 0;
  });
}

template <class Replica>
void PreparedObjects<Replica>::keep_local(const at::Tensor& loss) {
  for (auto* model : models_of(loss)) model->local = true;
  if constexpr (is_sharding<Replica>)
    for (const auto& model : models) model.replica->require_cleared();
}

template <class Replica>
void PreparedObjects<Replica>::failed(const std::exception& failure) {
  const auto armed = std::exchange(armed_, {});
  for (auto* model : armed) model->replica->give_up();
  if (dynamic_cast<const Error*>(&failure)) return;  // it says what it is
  for (const auto* model : armed) model->replica->explain(failure);
}

template <class Replica>
int64_t PreparedObjects<Replica>::reductions() const noexcept {
  int64_t count = 0;
  for (const auto& model : models) count += model.replica ? model.replica->reductions() : 0;
  return count;
}

template <class Replica>
void PreparedObjects<Replica>::require_reduced(const std::vector<at::Tensor>& parameters) const {
  if constexpr (is_sharding<Replica>)
    for (const auto& model : models)
      if (is_suspended(model) && have_common(model.parameters, parameters))
        detail::fail(ErrorCategory::usage,
                     "accel: rank {}: gradients of {} inside no_sync are each rank's own, and no "
                     "rank can step or clip its part of a sharded model by them; leave the scope "
                     "first, or use ddp",
                     state.process_index(), model.module->name());
  for (const auto& model : models)
    if (model.local && !is_suspended(model) && !gradients_of(parameters).empty() &&
        have_common(model.parameters, parameters))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the micro-batch that closes the window had no backward "
                   "through {}, so that the gradients of the earlier ones were not reduced; call "
                   "backward in it too (with a loss of zero, or a sum of none and a count of 0), "
                   "or zero_grad instead of step",
                   state.process_index(), model.module->name());
}

template <class Replica>
void PreparedObjects<Replica>::require_reduced(OptimizerRecord& optimizer) const {
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

template <class Replica>
void PreparedObjects<Replica>::require_unfinished(const at::Tensor& loss) {
  const bool any =
      !corrected_.empty() || std::ranges::any_of(optimizers, &OptimizerRecord::unscaled,
                                                 [](const auto& each) -> auto& { return *each; });
  if (!any) return;
  const auto leaves = leaves_of(loss);
  for (const auto& optimizer : optimizers) {
    const bool touched = std::ranges::any_of(optimizer->parameters, [&](const auto& parameter) {
      const auto* key = parameter.unsafeGetTensorImpl();
      return leaves.contains(key) && (optimizer->unscaled || corrected_.contains(key));
    });
    if (!touched) continue;
    // After the step what this adds is dropped by zero_grad, as in the second half of a GAN.
    if (optimizer->stepped) {
      optimizer->stale = true;
      continue;
    }
    detail::fail(ErrorCategory::usage,
                 "accel: rank {}: backward would add to gradients that clip_grad_norm_ or "
                 "unscale_gradients has taken the loss scale out of; clip after the last backward "
                 "of an optimizer, or step and zero_grad before the next",
                 state.process_index());
  }
}

template <class Replica>
void PreparedObjects<Replica>::require_fresh(const OptimizerRecord& optimizer) const {
  if (optimizer.stale)
    detail::fail(ErrorCategory::usage,
                 "accel: rank {}: gradients were added to those of the last step; call zero_grad "
                 "between the step and the next backward of an optimizer",
                 state.process_index());
}

template <class Replica>
void PreparedObjects<Replica>::correct(const std::vector<at::Tensor>& parameters, double factor) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined() && corrected_.insert(parameter.unsafeGetTensorImpl()).second)
      for (auto& gradient : held_gradients({parameter})) gradient.mul_(factor);
}

template <class Replica>
void PreparedObjects<Replica>::check_finite(const torch::nn::Module& module, int64_t step,
                                            const CallSite& where) {
  const auto& communicator = state.communicator();
  // While ranks join, one whose loop is over would not answer.
  if (joining_ || communicator.size() == 1) {
    try {
      accel::check_finite(module, step, communicator.rank());
    } catch (const Error& error) {
      communicator.leave_word(error.what());
      throw;
    }
    return;
  }
  const auto known = std::ranges::find(
      models, &module, [](const ModelRecord<Replica>& model) { return model.module.get(); });
  const bool reduced = known != models.end() && known->replica;
  check_finite_together(communicator, find_non_finite(module),
                        reduced ? known->watch.get() : nullptr, step, where);
  if (reduced && !known->watch) known->watch = std::make_unique<GradientWatch>(module);
}

template <class Replica>
void PreparedObjects<Replica>::correct_unreduced(double factor) {
  if (factor == 1.0) return;
  const at::NoGradGuard no_grad;
  for (const auto& model : models)
    for (auto& gradient : held_gradients(model.parameters)) gradient.mul_(factor);
}

template <class Replica>
void PreparedObjects<Replica>::cleared(OptimizerRecord& optimizer) {
  optimizer.unscaled = optimizer.stepped = optimizer.stale = optimizer.counted_nothing = false;
  optimizer.cleared_at = reductions_;
  for (const auto& parameter : optimizer.parameters)
    corrected_.erase(parameter.unsafeGetTensorImpl());
}

template <class Replica>
void PreparedObjects<Replica>::suspend_reduction(const torch::nn::Module* module, int by) noexcept {
  if (!module) suspended_ += by;
  for (auto& model : models)
    if (model.module.get() == module) model.suspended = std::max(0, model.suspended + by);
}

template <class Replica>
bool PreparedObjects<Replica>::is_any_suspended() const noexcept {
  return std::ranges::any_of(models, [this](const auto& model) { return is_suspended(model); });
}

template <class Replica>
PowerSgd* PreparedObjects<Replica>::power_sgd_of(const torch::nn::Module& module) const {
  if constexpr (!is_sharding<Replica>)
    if (const auto* replica = replica_of(module)) return replica->power_sgd();
  return nullptr;
}

template <class Replica>
std::vector<NamedParameter> PreparedObjects<Replica>::hook_state() const {
  std::vector<NamedParameter> all;
  for (size_t i = 0; i < models.size(); ++i)
    if (const auto* memory = power_sgd_of(*models[i].module))
      for (auto& [name, tensor] : memory->state())
        all.emplace_back(fmt::format("{}.{}", i, name), std::move(tensor));
  return all;
}

template <class Replica>
std::function<void()> PreparedObjects<Replica>::plan_hook_state(
    const std::vector<NamedParameter>& saved, bool own) const {
  std::vector<std::pair<PowerSgd*, PowerSgd>> loaded;
  for (size_t i = 0; i < models.size(); ++i) {
    auto* memory = power_sgd_of(*models[i].module);
    if (!memory) continue;
    const auto prefix = fmt::format("{}.", i);
    std::vector<NamedParameter> mine;
    for (const auto& [name, tensor] : saved)
      if (name.starts_with(prefix)) mine.emplace_back(name.substr(prefix.size()), tensor);
    loaded.emplace_back(memory, *memory).second.load_state(mine, own);
  }
  return [loaded = std::move(loaded)] {
    for (const auto& [memory, value] : loaded) *memory = value;
  };
}

template <class Replica>
void PreparedObjects<Replica>::average_parameters(const torch::nn::Module& module,
                                                  const CallSite& where) {
  auto tensors = unique_tensors(module.parameters());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& optimizer : optimizers) {
    if (!optimizer->masters) continue;
    for (const auto& pair : optimizer->masters()) {
      const auto& [master, parameter] = pair;
      const auto place = std::ranges::find_if(
          tensors, [&](const auto& each) { return each.is_same(pair.second); });
      if (place == tensors.end() || master.is_same(parameter)) continue;
      *place = master;
      copies.emplace_back(parameter, master);
    }
  }
  average_tensors(state.communicator(), tensors, where);
  for (const auto& [parameter, master] : copies) parameter.detach().copy_(master.detach());
  // Now that they agree: a later write to a parameter is the user's.
  for (const auto& optimizer : optimizers)
    if (optimizer->masters) (void)optimizer->masters();
}

template <class Replica>
void PreparedObjects<Replica>::share_buffers() {
  if (!std::exchange(buffers_differ_, false)) return;
  if (joining_ && std::ranges::any_of(
                      models, [](const auto& model) { return model.replica->shares_buffers(); }))
    (void)announce(JoinedCall::buffers);
  send_buffers();
}

template <class Replica>
void PreparedObjects<Replica>::send_buffers() {
  for (auto& model : models) model.replica->broadcast_buffers(source_);
}

template <class Replica>
void PreparedObjects<Replica>::join(bool joining) {
  if (joining && (models.size() != 1 || joining_))
    detail::fail(
        ErrorCategory::usage,
        "accel: rank {}: join_uneven_inputs is for one prepared model and not nested; there "
        "are {}",
        state.process_index(), models.size());
  // Each of them needs what a rank without a batch cannot give: statistics, the graph of the others,
  // or the gradients that its own window has so far.
  const std::string_view hindrance = options.ddp.sync_batch_norm ? "ddp.sync_batch_norm"
                                     : options.ddp.static_graph  ? "ddp.static_graph"
                                     : options.sync_each_batch   ? "sync_each_batch"
                                                                 : "";
  if (joining && !hindrance.empty())
    detail::fail(ErrorCategory::usage,
                 "accel: rank {}: join_uneven_inputs does not go with {}, in which a rank that has "
                 "no batch left cannot take part; leave the option off, or even the batches",
                 state.process_index(), hindrance);
  joining_ = joining;
  if (joining) return;
  // Whatever was not shared comes with the state of the rank that saw the last batch.
  buffers_differ_ = false;
  source_ = 0;
}

template <class Replica>
typename PreparedObjects<Replica>::JoinedCall PreparedObjects<Replica>::announce(JoinedCall mine) {
  const bool has_batch = mine != JoinedCall::none;
  const auto call = static_cast<int64_t>(mine);
  const int64_t rank = has_batch ? state.process_index() : -1;
  // One message: the highest rank that has a batch, and the largest and (negated) smallest of what
  // those call.
  const auto all = state.communicator().all_reduce(
      at::tensor({rank, call, has_batch ? -call : std::numeric_limits<int64_t>::min()}),
      Reduction::max);
  const auto source = all[0].item<int64_t>();
  if (source < 0) return JoinedCall::none;
  if (all[1].item<int64_t>() != -all[2].item<int64_t>())
    detail::fail(ErrorCategory::collective,
                 "accel: rank {}: inside join_uneven_inputs, ranks that have batches are at "
                 "different calls; every rank must call backward, and give counts, alike",
                 state.process_index());
  source_ = static_cast<int>(source);
  return static_cast<JoinedCall>(all[1].item<int64_t>());
}

template <class Replica>
void PreparedObjects<Replica>::shadow() {
  if constexpr (!is_sharding<Replica>) {
    auto& model = models.front();
    const auto clear = [&model] {
      for (auto& parameter : model.parameters) parameter.mutable_grad().reset();
    };
    clear();  // a loop that clears at its head leaves the gradients of its last step
    if (const auto loss = model.replica->zero_loss(); loss.defined()) {
      arm({&model}, loss);
      loss.backward();
      reduced();
    }
    clear();
  }
}

template <class Replica>
void PreparedObjects<Replica>::begin_window() {
  corrected_.clear();
  for (auto& model : models) model.local = false;
  for (const auto& optimizer : optimizers) {
    optimizer->unscaled = optimizer->stepped = optimizer->stale = false;
    optimizer->finite = true;
  }
}

template <class Replica>
void PreparedObjects<Replica>::clear_gradients() {
  for (const auto& optimizer : optimizers) {
    if (optimizer->refresh) optimizer->refresh();
    for (auto& parameter : optimizer->parameters) parameter.mutable_grad().reset();
    cleared(*optimizer);
  }
  for (auto& model : models) model.local = false;
}

template <class Replica>
auto PreparedObjects<Replica>::forget_objects() -> Copies {
  armed_.clear();
  if constexpr (is_sharding<Replica>)
    for (const auto& optimizer : optimizers)
      if (optimizer->assemble) optimizer->assemble(true);
  Copies copies;
  for (const auto& optimizer : optimizers) {
    if (optimizer->masters)
      for (auto& pair : optimizer->masters()) copies.push_back(std::move(pair));
    if (optimizer->release) optimizer->release();
  }
  if constexpr (is_sharding<Replica>)
    for (auto& model : models) model.replica->unshard();
  models.clear();
  optimizers.clear();
  return copies;
}

template <class Replica>
void PreparedObjects<Replica>::assemble() {
  if constexpr (is_sharding<Replica>) {
    size_t done = 0;
    try {
      for (; done < optimizers.size(); ++done)
        if (optimizers[done]->assemble) optimizers[done]->assemble(true);
    } catch (...) {
      for (size_t i = 0; i < done; ++i)
        if (optimizers[i]->assemble) optimizers[i]->assemble(false);
      throw;
    }
    for (auto& model : models) model.replica->hold(detail::Edits::none);
  }
}

template <class Replica>
void PreparedObjects<Replica>::disassemble() {
  if constexpr (is_sharding<Replica>) {
    for (auto& model : models) model.replica->unhold(detail::Edits::none);
    for (const auto& optimizer : optimizers)
      if (optimizer->assemble) optimizer->assemble(false);
  }
}

template <class Replica>
Replica* PreparedObjects<Replica>::replica_of(const torch::nn::Module& module) const {
  for (const auto& model : models)
    if (model.module.get() == &module) return model.replica.get();
  return nullptr;
}

template <class Replica>
std::vector<at::Tensor> PreparedObjects<Replica>::held_gradients(
    const std::vector<at::Tensor>& parameters) {
  if constexpr (is_sharding<Replica>)
    return detail::follow_user_gradients(parameters);
  else
    return gradients_of(parameters);
}

template <class Replica>
std::vector<ModelRecord<Replica>*> PreparedObjects<Replica>::models_of(const at::Tensor& loss) {
  std::unordered_set<const c10::TensorImpl*> leaves;
  if (models.size() > 1) leaves = leaves_of(loss);
  std::vector<ModelRecord<Replica>*> found;
  for (auto& model : models)
    if (!is_suspended(model) && (models.size() == 1 || model.replica->is_among(leaves)))
      found.push_back(&model);
  return found;
}

template <class Replica>
void PreparedObjects<Replica>::note_items(const at::Tensor& loss, bool any) {
  const auto is_noted = [](const auto& optimizer) { return optimizer->counted_nothing; };
  if (any && std::ranges::none_of(optimizers, is_noted)) return;
  const auto leaves = leaves_of(loss);
  const auto is_leaf = [&](const at::Tensor& parameter) {
    return leaves.contains(parameter.unsafeGetTensorImpl());
  };
  std::vector<int64_t> reached;
  for (const auto& optimizer : optimizers) {
    if (optimizer->refresh) optimizer->refresh();
    reached.push_back(std::ranges::any_of(optimizer->parameters, is_leaf) ? 1 : 0);
  }
  // A rank steps on what any of them has reached, so that they stay one.
  const bool graphs_may_differ = is_sharding<Replica> || options.ddp.find_unused_parameters;
  if (graphs_may_differ && !joining_ && state.num_processes() > 1 && !reached.empty()) {
    const auto on_any = state.communicator().all_reduce(at::tensor(reached), Reduction::max);
    const auto* flags = on_any.template const_data_ptr<int64_t>();
    reached.assign(flags, flags + on_any.numel());
  }
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const auto& optimizer = optimizers[i];
    if (reached[i] == 0) continue;
    if (any) {
      optimizer->counted_nothing = false;
      continue;
    }
    bool has_gradients = false;
    for (const auto& gradient : held_gradients(optimizer->parameters)) {
      const auto values = gradient.is_sparse() ? gradient._values() : gradient;
      has_gradients = has_gradients || values.ne(0).any().template item<bool>();
    }
    if constexpr (is_sharding<Replica>)  // each rank has looked at its part
      has_gradients = state.communicator().all_sum(has_gradients ? 1 : 0) > 0;
    if (!has_gradients) optimizer->counted_nothing = true;
  }
}

template <class Replica>
void PreparedObjects<Replica>::find_owners(OptimizerRecord& optimizer) const {
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
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the optimizer steps on a parameter of shape {} that is of no "
                   "prepared model, so that nothing reduces its gradient; prepare its module (one "
                   "that has grown: again)",
                   state.process_index(), c10::str(parameter.sizes()));
  optimizer.owned = optimizer.parameters.size();
  optimizer.owned_among = models_version_;
}

template class PreparedObjects<DataParallel>;
template class PreparedObjects<ShardedParallel>;

}  // namespace accel
