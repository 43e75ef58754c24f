// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/unit_reducer.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace accel::detail {

namespace {

/// Reductions under way at a time: one travels while the next is being filled.
constexpr size_t max_flying = 1;
}  // namespace

UnitReducer::UnitReducer(std::vector<std::unique_ptr<Unit>>& units, UnitGatherer& gatherer,
                         const GradientWire& wire, bool shards_each_batch)
    : units_(units),
      gatherer_(gatherer),
      wire_(wire),
      shards_each_batch_(shards_each_batch),
      states_(units.size()),
      order_(units.size()) {
  // Gradients become ready in about the reverse of the forward order; the first backward tells.
  std::iota(order_.rbegin(), order_.rend(), size_t{0});
}

void UnitReducer::watch_all() {
  for (auto& unit : units_)
    for (size_t i = 0; i < unit->parameters.size(); ++i)
      if (unit->parameters[i].parameter.requires_grad()) watch(*unit, unit->parameters[i], i);
}

UnitReducer::~UnitReducer() {
  for (const auto& [node, key] : hooks_) node->del_post_hook(key);
}

void UnitReducer::watch(Unit& unit, ShardedParameter& parameter, size_t index) {
  const at::AutoGradMode recording(true);
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.parameter);
  const auto key =
      parameter.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, &unit, &parameter, index](const torch::autograd::variable_list& outputs,
                                           const torch::autograd::variable_list&) {
            arrived(unit, parameter, index);
            return outputs;
          }));
  hooks_.emplace_back(parameter.accumulator.get(), key);
}

void UnitReducer::arm() {
  abandon();  // what a backward that threw has left
  completed_.clear();
  next_ = 0;
  for (auto& unit : units_) {
    auto& state = states_[static_cast<size_t>(unit->index)];
    state = {};
    state.used.assign(unit->parameters.size(), 0);
    state.accumulates.assign(unit->parameters.size(), 0);
    state.is_awaited.assign(unit->parameters.size(), 0);
    for (size_t i = 0; i < unit->parameters.size(); ++i) {
      auto& parameter = unit->parameters[i];
      auto& gradient = parameter.parameter.mutable_grad();
      const bool is_sharded = FlatStorage::of(gradient) != nullptr;
      // Also of one that is frozen now, and shares the shard with others.
      state.accumulates[i] = is_sharded && parameter.piece.grad().defined() ? 1 : 0;
      if (!parameter.parameter.requires_grad()) continue;
      if (!parameter.accumulator) watch(*unit, parameter, i);
      ++state.awaited;
      state.is_awaited[i] = 1;
      // Autograd would add to the sharded one; what comes is wanted alone.
      if (is_sharded) gradient.reset();
    }
  }
  armed_ = true;
}

void UnitReducer::arrived(Unit& unit, ShardedParameter& parameter, size_t index) {
  if (!armed_) {
    if (!shards_each_batch_) return;  // whole gradients add up until they are reduced
    parameter.parameter.mutable_grad().reset();
    fail(ErrorCategory::usage,
         "accel: rank {}: a backward reached the sharded parameter '{}' without being told to "
         "reduce; call accelerator.backward(loss), not loss.backward()",
         gatherer_.exchange().world().rank(), parameter.name);
  }
  auto& state = states_[static_cast<size_t>(unit.index)];
  if (state.launched)
    fail(ErrorCategory::usage,
         "accel: rank {}: the gradient of the sharded parameter '{}' came again after its unit was "
         "reduced; a backward inside a backward may use a unit once, or all of it before the outer "
         "one",
         gatherer_.exchange().world().rank(), parameter.name);
  take(unit, parameter, index);
  if (!std::exchange(state.is_awaited[index], 0) || --state.awaited > 0) return;
  completed_.push_back(static_cast<size_t>(unit.index));
  launch_in_order();
}

void UnitReducer::take(Unit& unit, ShardedParameter& parameter, size_t index) {
  const EngineScope ours;
  auto& state = states_[static_cast<size_t>(unit.index)];
  auto& arrived = parameter.parameter.mutable_grad();
  auto gradient = arrived.detach();
  arrived.reset();
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  const auto type = wire_.type_for(unit.values.whole.flat().scalar_type());
  if (!state.parts.defined()) state.parts = parts_for(unit);
  const auto target = state.parts.narrow(0, parameter.offset, gradient.numel());
  const auto flat = in_memory_order(gradient, parameter.strides);
  const int ranks = gatherer_.exchange().world().size();
  // As c10d::Reducer: divided before the sum, which a 16-bit type may not hold.
  if (state.used[index])
    target.add_(at::mul(flat.to(type), 1.0 / ranks));
  else if (type == flat.scalar_type() && !wire_.casts())
    target.copy_(flat).mul_(1.0 / ranks);
  else
    target.copy_(flat).div_(ranks);
  state.used[index] = 1;
}

at::Tensor UnitReducer::parts_for(const Unit& unit) {
  // The policy speaks of the type of the parameters, also where shards are fp32 masters.
  const auto& like = unit.values.whole.flat();
  const auto type = wire_.type_for(like.scalar_type());
  auto spare = std::exchange(spare_, {});
  if (spare.defined() && spare.numel() == unit.layout.size() && spare.scalar_type() == type)
    return spare;
  return at::empty({unit.layout.size()}, like.options().dtype(type));
}

void UnitReducer::launch_in_order() {
  while (next_ < order_.size()) {
    const auto& state = states_[order_[next_]];
    if (state.awaited > 0) return;
    launch(*units_[order_[next_++]]);
  }
}

void UnitReducer::launch(Unit& unit) {
  const EngineScope ours;
  auto& state = states_[static_cast<size_t>(unit.index)];
  state.launched = true;
  const bool trained = std::ranges::any_of(unit.parameters, [](const ShardedParameter& parameter) {
    return parameter.parameter.requires_grad();
  });
  if (!trained) return;
  while (flying_.size() >= max_flying) {
    land(*flying_.front());
    flying_.pop_front();
  }
  auto& shard = unit.gradient_shard();
  if (!state.parts.defined()) state.parts = parts_for(unit);
  // What no gradient has filled.
  int64_t end = 0;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    if (!state.used[i]) continue;
    const auto begin = unit.parameters[i].offset;
    state.parts.narrow(0, end, begin - end).zero_();
    end = begin + unit.parameters[i].parameter.numel();
  }
  state.parts.narrow(0, end, unit.layout.size() - end).zero_();
  const bool adds = std::ranges::any_of(state.accumulates, [](char each) { return each != 0; });
  const auto target = adds ? at::empty_like(shard.flat()) : shard.flat();
  if (adds) state.sum = target;
  state.pending = gatherer_.exchange().reduce(target, state.parts);
  const auto ranks = gatherer_.exchange().size();
  received_ += static_cast<int64_t>(state.parts.nbytes()) / ranks * (ranks - 1);
  flying_.push_back(&unit);
}

void UnitReducer::land(Unit& unit) {
  const EngineScope ours;
  auto& state = states_[static_cast<size_t>(unit.index)];
  state.pending.wait();
  spare_ = std::move(state.parts);
  if (!state.sum.defined()) return;
  for (size_t i = 0; i < unit.parameters.size(); ++i)
    if (!state.accumulates[i] && unit.parameters[i].part.size() > 0)
      unit.parameters[i].gradient_piece.zero_();
  unit.gradients.shard.flat().add_(state.sum);
  state.sum.reset();
}

void UnitReducer::finish() {
  if (!armed_) return;
  // Whole gradients of earlier micro-batches wait for the one that reduces, which may not have had
  // one for each parameter.
  for (auto& unit : units_)
    for (size_t i = 0; i < unit->parameters.size(); ++i) {
      auto& parameter = unit->parameters[i];
      if (parameter.parameter.requires_grad() && parameter.parameter.grad().defined())
        take(*unit, parameter, i);
    }
  while (next_ < order_.size()) launch(*units_[order_[next_++]]);
  while (!flying_.empty()) {
    land(*flying_.front());
    flying_.pop_front();
  }
  spare_.reset();
  armed_ = false;
  const auto used = used_anywhere();
  size_t number = 0;
  for (auto& unit : units_) {
    const auto& state = states_[static_cast<size_t>(unit->index)];
    gatherer_.written(unit->gradients.shard, unit->gradients.shard.flat());
    for (size_t i = 0; i < unit->parameters.size(); ++i, ++number) {
      auto& parameter = unit->parameters[i];
      const bool is_used = used[number] != 0;
      if (is_used || state.accumulates[i]) {
        parameter.show_gradient();
      } else if (parameter.parameter.requires_grad()) {
        parameter.piece.mutable_grad().reset();
      }
    }
  }
  if (!learned_) learn_order();
}

std::vector<int64_t> UnitReducer::used_anywhere() {
  std::vector<int64_t> flags;
  for (const auto& unit : units_) {
    const auto& used = states_[static_cast<size_t>(unit->index)].used;
    flags.insert(flags.end(), used.begin(), used.end());
  }
  const auto trace = gatherer_.take_trace();
  if (gatherer_.exchange().world().size() == 1) return flags;
  const size_t parameters = flags.size();
  flags.push_back(trace);
  flags.push_back(-trace);
  std::vector<at::Tensor> all{at::tensor(flags, at::kLong)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  const auto device = units_.front()->values.whole.flat().device();
  all[0] = all[0].to(device);
  gatherer_.exchange().world().group()->allreduce(all, options)->wait();
  const auto values = all[0].cpu();
  const auto* data = values.const_data_ptr<int64_t>();
  if (data[parameters] != -data[parameters + 1])
    fail(
        ErrorCategory::collective,
        "accel: rank {}: ranks gathered different units in this step, so that its gradients are of "
        "wrong parameters; every rank must run the same modules in the same order, and touch "
        "sharded parameters alike (print norms on all ranks, not on one)",
        gatherer_.exchange().world().rank());
  return {data, data + parameters};
}

void UnitReducer::learn_order() {
  learned_ = true;
  if (gatherer_.exchange().world().size() == 1) return;
  std::vector<int64_t> order(completed_.begin(), completed_.end());
  for (const auto unit : order_)
    if (!std::ranges::count(completed_, unit)) order.push_back(static_cast<int64_t>(unit));
  const auto device = units_.front()->values.whole.flat().device();
  const auto tensor = at::tensor(order, at::kLong).to(device);
  gatherer_.exchange().world().broadcast_coalesced_({tensor}, 0);
  const auto of_rank_0 = tensor.cpu();
  const auto* data = of_rank_0.const_data_ptr<int64_t>();
  order_.assign(data, data + order.size());
}

void UnitReducer::abandon() {
  for (auto* unit : flying_) try {
      states_[static_cast<size_t>(unit->index)].pending.wait();
    } catch (const std::exception&) {  // its failure is known by now
    }
  flying_.clear();
  spare_.reset();
  for (auto& state : states_) state = {};
  armed_ = false;
}

}  // namespace accel::detail
