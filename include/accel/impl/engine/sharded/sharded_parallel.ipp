// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/sharded_parallel.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/replica.hpp>
#include <accel/engine/sharded/sharded_assignment.hpp>
#include <accel/engine/sharded/sharded_dispatch.hpp>
#include <accel/engine/sharded/unit_reducer.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

namespace accel {

using detail::EngineScope;
using detail::FlatStorage;
using detail::Residence;
using detail::ShardedParameter;
using detail::Unit;

namespace {

Residence residence_of(const ShardingPlan& plan, int ranks) {
  // One process holds everything anyway, unless it waits in a file.
  if (!plan.shards_parameters || (ranks == 1 && !plan.file)) return Residence::always;
  return plan.reshards_after_forward ? Residence::while_used : Residence::forward_to_backward;
}

/// Strides of a parameter as they will be: its own if it fills its memory, else those of a
/// contiguous one.
std::vector<int64_t> dense_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), parameter.options().device(at::kMeta)).strides().vec();
}

/// Keeps this rank's part of a parameter's value, and all of it where the unit is whole.
void take_value(Unit& unit, const ShardedParameter& parameter, const at::Tensor& value) {
  auto& whole = unit.values.whole;
  // Rounded to the parameter's type first, also where shards are of a wider one.
  const auto flat =
      detail::in_memory_order(value.to(whole.flat().scalar_type()), parameter.strides);
  if (whole.is_present()) whole.flat().narrow(0, parameter.offset, flat.numel()).copy_(flat);
  if (parameter.part.size() > 0)
    unit.values.shard.flat()
        .narrow(0, parameter.place, parameter.part.size())
        .copy_(flat.narrow(0, parameter.part.begin, parameter.part.size()));
}

/// The parameter of a unit that a keyed tensor stands for; null for any other tensor.
std::pair<Unit*, ShardedParameter*> find(const at::Tensor& parameter) {
  auto* storage = FlatStorage::of(parameter);
  if (!storage || storage->kind() != detail::FlatKind::values) return {};
  auto* found = storage->unit().parameter_of(parameter);
  return {found ? &storage->unit() : nullptr, found};
}

/// Takes over what the user has made of a parameter's `.grad`.
void follow_gradient(Unit& unit, ShardedParameter& parameter) {
  const auto& gradient = parameter.parameter.grad();
  if (!gradient.defined()) {
    parameter.piece.mutable_grad().reset();
    return;
  }
  if (FlatStorage::of(gradient)) return;
  const EngineScope ours;
  auto& shard = unit.gradient_shard();
  const auto whole = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (parameter.part.size() > 0)
    parameter.gradient_piece.copy_(detail::in_memory_order(whole, parameter.strides)
                                       .narrow(0, parameter.part.begin, parameter.part.size()));
  unit.gatherer->written(shard, shard.flat());
  parameter.show_gradient();
}

}  // namespace

struct ShardedParallel::Parts {
  Parts(const detail::ShardExchange& exchange, const ShardingPlan& plan)
      : gatherer(exchange, residence_of(plan, exchange.size())) {}

  detail::UnitGatherer gatherer;
  std::vector<std::unique_ptr<Unit>> units;
  std::unique_ptr<detail::UnitReducer> reducer;  // before the units, whose parameters it watches
};

ShardedParallel::ShardedParallel(std::shared_ptr<torch::nn::Module> module,
                                 Communicator communicator, const DdpOptions& ddp,
                                 const ShardedOptions& options, const ShardingPlan& plan,
                                 GradientWire wire)
    : module_(std::move(module)),
      communicator_(std::move(communicator)),
      options_(options),
      wire_(wire),
      parameters_(unique_parameters(*module_)) {
  wire_.hook = ddp.comm_hook;
  if (ddp.comm_hook == CommHook::power_sgd)
    detail::fail(ErrorCategory::config,
                 "accel: rank {}: ddp.comm_hook is power_sgd, which needs whole gradients on every "
                 "rank; use ddp, or fp16_compress or bf16_compress",
                 communicator_.rank());
  if (communicator_.size() > 1) {
    detail::require_same_module(
        communicator_,
        fmt::format("comm_hook {}\nmin_num_params {}\ngroup_size {}\nbroadcast_buffers {}\n"
                    "sync_batch_norm {}\n",
                    name_of(ddp.comm_hook), options_.min_num_params, group_size(plan),
                    options_.broadcast_buffers, ddp.sync_batch_norm),
        parameters_, *module_);
    detail::broadcast_module(communicator_, parameters_, *module_);
  }
  require_shardable();
  detail::install_sharded_dispatch();
  detail::install_sharded_assignment();
  parts_ = std::make_unique<Parts>(plan.in_groups
                                       ? detail::ShardExchange(communicator_, group_size(plan))
                                       : detail::ShardExchange(communicator_),
                                   plan);
  shard(plan);
}

ShardedParallel::~ShardedParallel() {
  parts_->reducer->abandon();
  parts_->gatherer.release_all();
}

int ShardedParallel::group_size(const ShardingPlan& plan) const {
  if (!plan.in_groups) return communicator_.size();
  return options_.group_size > 0 ? options_.group_size : communicator_.ranks().local_size;
}

void ShardedParallel::require_shardable() const {
  for (const auto& [name, tensor] : parameters_) {
    if (FlatStorage::of(tensor))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the parameter '{}' is sharded by another accelerator; call its "
                   "free_memory() on every rank first",
                   communicator_.rank(), name);
    if (tensor.layout() != at::kStrided)
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: the parameter '{}' has the layout {}, and only strided ones can "
          "be sharded; use ddp",
          communicator_.rank(), name, c10::str(tensor.layout()));
  }
}

void ShardedParallel::shard(const ShardingPlan& plan) {
  const EngineScope ours;
  const auto add_units = [&] {
    for (const auto& cut : cut_into_units(*module_, plan.units)) {
      // A unit's memory is of one dtype on one device, so that one of several becomes several.
      std::map<std::pair<c10::ScalarType, std::string>, std::vector<NamedParameter>> alike;
      for (const auto& named : cut.parameters)
        alike[{named.second.scalar_type(), named.second.device().str()}].push_back(named);
      for (const auto& [key, named] : alike) add_unit(cut.name, named, plan);
    }
  };
  if (plan.file)
    communicator_.together(add_units, ErrorCategory::config,
                           "another rank has too little space in its offload.folder");
  else
    add_units();
  parts_->reducer = std::make_unique<detail::UnitReducer>(parts_->units, parts_->gatherer, wire_,
                                                          plan.shards_gradients);
  fill(plan.deferred);
  // Last, since from here on the module is another: nothing below allocates.
  for (auto& unit : parts_->units)
    for (auto& parameter : unit->parameters) {
      parameter.parameter.mutable_grad().reset();
      detail::give_memory(
          parameter.parameter,
          unit->values.whole.keyed(parameter.offset, parameter.sizes, parameter.strides));
    }
  parts_->reducer->watch_all();
}

/// Each rank computes all values, one after the other, and keeps its parts.
void ShardedParallel::fill(const detail::DeferredTensors& deferred) {
  if (deferred.empty()) return;
  detail::share_random_state(communicator_, deferred);
  std::map<std::string, std::pair<Unit*, ShardedParameter*>> parameters;
  for (auto& unit : parts_->units)
    for (auto& parameter : unit->parameters) parameters[parameter.name] = {unit.get(), &parameter};
  detail::run_recipes(deferred, [&](const std::string& name, const at::Tensor& value) {
    const auto place = parameters.find(name);
    if (place == parameters.end()) {
      const auto buffer = module_->named_buffers()[name];
      detail::give_memory(buffer, value.to(buffer.scalar_type()));
      return;
    }
    const auto& [unit, parameter] = place->second;
    take_value(*unit, *parameter, value);
  });
  for (auto& unit : parts_->units) unit->values.shard.drop_pages();
}

void ShardedParallel::add_unit(const std::string& name, const std::vector<NamedParameter>& named,
                               const ShardingPlan& plan) {
  const auto& exchange = parts_->gatherer.exchange();
  const bool resident = residence_of(plan, exchange.size()) == Residence::always;
  const auto& first = named.front().second;
  const auto type = first.scalar_type();
  const bool has_masters = plan.master_type != c10::ScalarType::Undefined &&
                           c10::isReducedFloatingType(type) && type != plan.master_type;
  std::vector<int64_t> numels;
  for (const auto& item : named) numels.push_back(item.second.numel());
  auto unit = std::make_unique<Unit>(
      static_cast<int>(parts_->units.size()), name, detail::UnitLayout(numels, exchange.size()),
      type, has_masters ? plan.master_type : type, first.is_meta() ? plan.device : first.device());

  auto& values = unit->values;
  const int64_t chunk = unit->layout.chunk();
  if (resident) {
    values.whole.allocate();
    values.whole.flat().zero_();
    values.gathered = values.version;
  }
  if (resident && !has_masters) {
    values.shard.alias(values.whole.flat().narrow(0, exchange.rank() * chunk, chunk));
  } else if (plan.file) {
    values.shard.allocate_in(*plan.file);
  } else {
    values.shard.allocate();
    values.shard.flat().zero_();
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const auto& tensor = named[i].second;
    auto& parameter = unit->parameters.emplace_back();
    parameter.name = named[i].first;
    parameter.parameter = tensor;
    parameter.part = unit->layout.piece(i, exchange.rank());
    parameter.offset = unit->layout.offset(i);
    parameter.place = unit->layout.place_in_chunk(i, exchange.rank());
    parameter.sizes = tensor.sizes().vec();
    parameter.strides = dense_strides(tensor);
    if (!tensor.is_meta()) take_value(*unit, parameter, tensor.detach());
    parameter.piece = values.shard.keyed(parameter.place, parameter.part.size());
    parameter.piece.set_requires_grad(tensor.requires_grad());
    parameter.gradient_piece = unit->gradients.shard.keyed(parameter.place, parameter.part.size());
    parameter.gradient =
        unit->gradients.whole.keyed(parameter.offset, parameter.sizes, parameter.strides);
  }
  parts_->gatherer.add(*unit);
  parts_->units.push_back(std::move(unit));
}

void ShardedParallel::unshard() {
  parts_->reducer->abandon();
  for (auto& unit : parts_->units) {
    parts_->gatherer.hold(*unit, detail::Edits::none);
    for (auto& parameter : unit->parameters) {
      const bool has_gradient = FlatStorage::of(parameter.parameter.grad());
      const auto gradient = has_gradient ? parameter.parameter.grad().clone() : at::Tensor();
      const EngineScope ours;
      const auto plain = at::empty_strided(parameter.sizes, parameter.strides,
                                           unit->values.whole.flat().options());
      plain.copy_(unit->values.whole.flat().as_strided(parameter.sizes, parameter.strides,
                                                       parameter.offset));
      parameter.parameter.set_data(plain);
      if (has_gradient) parameter.parameter.mutable_grad() = gradient;
    }
    parts_->gatherer.unhold(*unit, detail::Edits::none);
    parts_->gatherer.give_back(*unit);
  }
  parts_->gatherer.release_all();
}

void ShardedParallel::require_cleared() const {
  for (const auto& unit : parts_->units)
    for (const auto& parameter : unit->parameters)
      if (FlatStorage::of(parameter.parameter.grad()))
        detail::fail(ErrorCategory::usage,
                     "accel: rank {}: a backward that is not reduced would add to the reduced "
                     "gradient of the sharded parameter '{}'; call zero_grad before it, or use ddp",
                     communicator_.rank(), parameter.name);
}

bool ShardedParallel::is_among(const std::unordered_set<const c10::TensorImpl*>& leaves) const {
  return std::ranges::any_of(parameters_, [&](const NamedParameter& parameter) {
    return leaves.contains(parameter.second.unsafeGetTensorImpl());
  });
}

void ShardedParallel::arm(const at::Tensor&) {
  if (broken_)
    detail::fail(
        ErrorCategory::collective,
        "accel: rank {}: the gradients of the last backward were never reduced, since it "
        "threw or left parameters out; prepare the model again, on every rank, before going "
        "on. Cause: {}",
        communicator_.rank(), "the last backward threw");
  for (auto& unit : parts_->units)
    for (auto& parameter : unit->parameters) {
      if (!FlatStorage::of(parameter.parameter))
        detail::fail(ErrorCategory::usage,
                     "accel: rank {}: the sharded parameter '{}' was given other memory after "
                     "prepare; prepare the model again, on every rank",
                     communicator_.rank(), parameter.name);
      if (!parameter.parameter.grad().defined()) parameter.piece.mutable_grad().reset();
    }
  parts_->reducer->arm();
  ++reductions_;
}

void ShardedParallel::finish() {
  try {
    parts_->reducer->finish();
  } catch (const std::exception& failure) {
    broken_ = true;
    if (dynamic_cast<const Error*>(&failure)) throw;
    explain(failure);
    throw;
  }
  parts_->gatherer.end_of_backward();
}

void ShardedParallel::explain(const std::exception& failure) const {
  detail::explain_reduction(communicator_, failure);
}

bool ShardedParallel::shares_buffers() const {
  return communicator_.size() > 1 && options_.broadcast_buffers && !module_->buffers().empty();
}

void ShardedParallel::broadcast_buffers(int root) {
  if (shares_buffers()) detail::broadcast_buffers(communicator_, *module_, root);
}

void ShardedParallel::recover() {
  parts_->reducer->abandon();
  parts_->gatherer.release_all();
  broken_ = false;
}

void ShardedParallel::hold(detail::Edits edits) {
  for (auto& unit : parts_->units) parts_->gatherer.hold(*unit, edits);
}
void ShardedParallel::unhold(detail::Edits edits) {
  for (auto& unit : parts_->units) parts_->gatherer.unhold(*unit, edits);
  parts_->gatherer.refresh();
}

ShardingReport ShardedParallel::report() const {
  ShardingReport report;
  for (const auto& unit : parts_->units) {
    const auto bytes = [](const FlatStorage& storage) {
      return static_cast<int64_t>(storage.flat().nbytes());
    };
    ++report.units;
    report.parameters += bytes(unit->values.shard);
    report.largest_unit = std::max(report.largest_unit, bytes(unit->values.whole));
    if (unit->values.whole.is_present()) report.whole_parameters += bytes(unit->values.whole);
  }
  report.gathers = parts_->gatherer.counts().gathers;
  report.prefetched = parts_->gatherer.counts().prefetched;
  report.received = parts_->gatherer.counts().received + parts_->reducer->received();
  return report;
}

namespace detail {

void refresh_wholes(const std::vector<at::Tensor>& parameters) {
  const detail::UnitGatherer* last = nullptr;
  for (const auto& parameter : parameters) {
    const auto [unit, found] = find(parameter);
    if (!unit || unit->gatherer == last) continue;
    unit->gatherer->refresh();
    last = unit->gatherer;
  }
}

at::Tensor local_piece(const at::Tensor& parameter) {
  const auto [unit, found] = find(parameter);
  return found ? found->piece : parameter;
}

std::vector<at::Tensor> follow_user_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    const auto [unit, found] = find(parameter);
    if (found) follow_gradient(*unit, *found);
    const auto& gradient = found ? found->piece.grad() : parameter.grad();
    if (gradient.defined()) gradients.push_back(gradient);
  }
  return gradients;
}

Communicator group_of(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters)
    if (const auto [unit, found] = find(parameter); unit) return unit->gatherer->exchange().group();
  return {};
}

bool is_sharded(const at::Tensor& parameter) { return find(parameter).second != nullptr; }

std::vector<at::Tensor> whole_of(const std::vector<at::Tensor>& parameters,
                                 const std::vector<at::Tensor>& pieces) {
  const EngineScope ours;
  // One gather a unit, in the order in which the parameters name them: the same on every rank.
  std::vector<Unit*> order;
  std::map<Unit*, at::Tensor> shards, wholes;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto [unit, found] = find(parameters[i]);
    auto& shard = shards[unit];
    if (!shard.defined()) {
      shard = at::zeros({unit->layout.chunk()}, pieces[i].options());
      order.push_back(unit);
    }
    shard.narrow(0, found->place, found->part.size()).copy_(pieces[i]);
  }
  for (auto* unit : order) {
    const auto whole = at::empty({unit->layout.size()}, shards[unit].options());
    constexpr int of_whole_units = 1 << 30;  // above the tags of the gatherer
    unit->gatherer->exchange().gather(whole, shards[unit], of_whole_units | unit->index).wait();
    wholes[unit] = whole;
  }
  std::vector<at::Tensor> result;
  for (const auto& parameter : parameters) {
    const auto [unit, found] = find(parameter);
    result.push_back(wholes[unit].as_strided(found->sizes, found->strides, found->offset).clone());
  }
  return result;
}

at::Tensor piece_of(const at::Tensor& parameter, const at::Tensor& whole) {
  const EngineScope ours;
  const auto [unit, found] = find(parameter);
  return in_memory_order(whole, found->strides)
      .narrow(0, found->part.begin, found->part.size())
      .clone();
}

}  // namespace detail
}  // namespace accel
