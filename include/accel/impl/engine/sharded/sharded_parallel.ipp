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
  // One process holds everything anyway.
  if (!plan.shards_parameters || ranks == 1) return Residence::always;
  return plan.reshards_after_forward ? Residence::while_used : Residence::forward_to_backward;
}

/// Strides of a parameter as they will be: its own if it fills its memory, else those of a
/// contiguous one.
std::vector<int64_t> dense_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), parameter.options().device(at::kMeta)).strides().vec();
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
  auto& shard = unit.gradients.shard;
  if (!shard.is_present()) {
    shard.allocate();
    shard.flat().zero_();
  }
  const auto whole = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (parameter.part.size() > 0)
    parameter.gradient_piece.copy_(detail::in_memory_order(whole, parameter.strides)
                                       .narrow(0, parameter.part.begin, parameter.part.size()));
  ++unit.gradients.version;
  parameter.parameter.mutable_grad() = parameter.gradient;
  parameter.piece.mutable_grad() = parameter.gradient_piece;
}

}  // namespace

struct ShardedParallel::Parts {
  Parts(detail::ShardExchange exchange, const ShardingPlan& plan)
      : gatherer(std::move(exchange), residence_of(plan, exchange.size())) {}

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
                    name_of(ddp.comm_hook), options_.min_num_params, options_.group_size,
                    options_.broadcast_buffers, ddp.sync_batch_norm),
        parameters_, *module_);
    detail::broadcast_module(communicator_, parameters_, *module_);
  }
  shard(plan);
}

ShardedParallel::~ShardedParallel() {
  parts_->reducer->abandon();
  parts_->gatherer.release_all();
}

void ShardedParallel::shard(const ShardingPlan& plan) {
  detail::install_sharded_dispatch();
  detail::install_sharded_assignment();
  const auto& ranks_of_job = communicator_.ranks();
  const int group_size = options_.group_size > 0 ? options_.group_size : ranks_of_job.local_size;
  parts_ = std::make_unique<Parts>(plan.in_groups ? detail::ShardExchange(communicator_, group_size)
                                                  : detail::ShardExchange(communicator_),
                                   plan);
  const EngineScope ours;
  const int rank = parts_->gatherer.exchange().rank(), ranks = parts_->gatherer.exchange().size();
  const bool resident = residence_of(plan, ranks) == Residence::always;

  for (const auto& cut : cut_into_units(*module_, plan.units)) {
    // A unit's memory is of one dtype, so that one of several becomes several.
    std::map<c10::ScalarType, std::vector<NamedParameter>> by_type;
    for (const auto& named : cut.parameters) by_type[named.second.scalar_type()].push_back(named);
    for (const auto& [type, named] : by_type) {
      std::vector<int64_t> numels;
      for (const auto& [name, tensor] : named) numels.push_back(tensor.numel());
      const bool has_masters = plan.master_type != c10::ScalarType::Undefined &&
                               c10::isReducedFloatingType(type) && type != plan.master_type;
      auto unit = std::make_unique<Unit>(
          static_cast<int>(parts_->units.size()), cut.name, detail::UnitLayout(numels, ranks), type,
          has_masters ? plan.master_type : type, named.front().second.device());
      parts_->gatherer.add(*unit);
      auto& values = unit->values;
      const int64_t chunk = unit->layout.chunk();
      if (resident) {
        values.whole.allocate();
        values.whole.flat().zero_();
      }
      if (resident && !has_masters) {
        values.shard.alias(values.whole.flat().narrow(0, rank * chunk, chunk));
      } else {
        values.shard.allocate();
        values.shard.flat().zero_();
      }
      for (size_t i = 0; i < named.size(); ++i) {
        auto& [name, tensor] = named[i];
        auto& parameter = unit->parameters.emplace_back();
        parameter.name = name;
        parameter.parameter = tensor;
        parameter.part = unit->layout.piece(i, rank);
        parameter.offset = unit->layout.offset(i);
        parameter.sizes = tensor.sizes().vec();
        parameter.strides = dense_strides(tensor);
        const auto place = unit->layout.place_in_chunk(i, rank);
        const auto flat = detail::in_memory_order(tensor.detach(), parameter.strides);
        if (resident) values.whole.flat().narrow(0, parameter.offset, tensor.numel()).copy_(flat);
        if (parameter.part.size() > 0)
          values.shard.flat()
              .narrow(0, place, parameter.part.size())
              .copy_(flat.narrow(0, parameter.part.begin, parameter.part.size()));
        parameter.piece = values.shard.keyed(place, parameter.part.size());
        parameter.piece.set_requires_grad(tensor.requires_grad());
        parameter.gradient_piece = unit->gradients.shard.keyed(place, parameter.part.size());
        parameter.gradient =
            unit->gradients.whole.keyed(parameter.offset, parameter.sizes, parameter.strides);
        parameter.parameter.mutable_grad().reset();
        parameter.parameter.set_data(
            values.whole.keyed(parameter.offset, parameter.sizes, parameter.strides));
      }
      values.gathered = resident ? values.version : -1;
      parts_->gatherer.add(*unit);
      parts_->units.push_back(std::move(unit));
    }
  }
  parts_->reducer = std::make_unique<detail::UnitReducer>(parts_->units, parts_->gatherer, wire_,
                                                          plan.shards_gradients);
}

void ShardedParallel::unshard() {
  parts_->reducer->abandon();
  for (auto& unit : parts_->units) {
    parts_->gatherer.pin(*unit);
    for (auto& parameter : unit->parameters) {
      const bool has_gradient = FlatStorage::of(parameter.parameter.grad());
      const auto gradient = has_gradient ? parameter.parameter.grad().clone() : at::Tensor();
      const EngineScope ours;
      const auto plain = at::empty_strided(parameter.sizes, parameter.strides,
                                           unit->values.whole.flat().options());
      plain.copy_(parameter.parameter.detach());
      parameter.parameter.set_data(plain);
      if (has_gradient) parameter.parameter.mutable_grad() = gradient;
    }
    parts_->gatherer.unpin(*unit);
  }
  parts_->gatherer.release_all();
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

void ShardedParallel::hold() {
  for (auto& unit : parts_->units) parts_->gatherer.pin(*unit);
}
void ShardedParallel::unhold(bool keep_edits) {
  for (auto& unit : parts_->units) {
    // Else what is whole is not what the shards say.
    if (keep_edits)
      parts_->gatherer.keep_edits(*unit);
    else
      unit->values.gathered = -1;
    parts_->gatherer.unpin(*unit);
  }
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
  return report;
}

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

std::vector<at::Tensor> local_gradients(const std::vector<at::Tensor>& parameters) {
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

namespace detail {

Communicator group_of(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters)
    if (const auto [unit, found] = find(parameter); unit) return unit->gatherer->exchange().group();
  return {};
}

bool is_sharded(const at::Tensor& parameter) { return find(parameter).second != nullptr; }

std::vector<at::Tensor> whole_of(const std::vector<at::Tensor>& parameters,
                                 const std::vector<at::Tensor>& pieces) {
  const EngineScope ours;
  // One gather a unit: the pieces of its parameters lie in its layout.
  std::map<Unit*, at::Tensor> shards;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto [unit, found] = find(parameters[i]);
    auto& shard = shards[unit];
    if (!shard.defined()) shard = at::zeros({unit->layout.chunk()}, pieces[i].options());
    if (found->part.size() == 0) continue;
    const auto place = found->offset + found->part.begin -
                       unit->gatherer->exchange().rank() * unit->layout.chunk();
    shard.narrow(0, place, found->part.size()).copy_(pieces[i]);
  }
  // In the order of the units, which is the same on every rank.
  std::vector<Unit*> order;
  for (const auto& [unit, shard] : shards) order.push_back(unit);
  std::ranges::sort(order, {}, &Unit::index);
  std::map<Unit*, at::Tensor> wholes;
  for (auto* unit : order) {
    const auto whole = at::empty({unit->layout.size()}, shards[unit].options());
    unit->gatherer->exchange().gather(whole, shards[unit]).wait();
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
