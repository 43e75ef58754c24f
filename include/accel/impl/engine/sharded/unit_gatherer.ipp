// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/unit_gatherer.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace accel::detail {

namespace {

GatheredStorage& gathered_of(FlatStorage& storage) {
  auto& unit = storage.unit();
  const auto kind = storage.kind();
  return kind == FlatKind::values || kind == FlatKind::value_shard ? unit.values : unit.gradients;
}

bool is_whole(const FlatStorage& storage) {
  return storage.kind() == FlatKind::values || storage.kind() == FlatKind::gradients;
}

bool is_values(const GatheredStorage& storage) { return storage.whole.kind() == FlatKind::values; }

/// Says which unit's, of what and for which time, so that nothing that a rank does alone is taken for
/// what another one does later: 14 bits of the unit, one, and 15 of the time.
int tag_of(GatheredStorage& storage) {
  const auto what = (storage.whole.unit().index & 0x3fff) * 2 + (is_values(storage) ? 0 : 1);
  return (what << 15) | static_cast<int>(storage.gathers++ & 0x7fff);
}

int unit_of_tag(int tag) { return tag >> 16; }

/// For what a rank is told whose gather failed.
std::string gathering_of(const GatheredStorage& storage) {
  return fmt::format("the gathering of {} (which every rank must take part in; reading or printing "
                     "a parameter is one)",
                     storage.whole.unit().title());
}

std::string reason_of_absence(const GatheredStorage& storage) {
  return fmt::format(
      "accel: the memory of a {} of {} was read directly while it is sharded, or before it was "
      "gathered again after a step; use tensor operations, which gather it, or "
      "accelerator.summon_full_params",
      is_values(storage) ? "parameter" : "gradient", storage.whole.unit().title());
}

/// The elements of a storage between the first and the last that a tensor has.
Piece span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {tensor.storage_offset(), last + 1};
}

/// Copies, but where both are in different types and what is there rounds to the new value already:
/// an fp32 master keeps its bits.
void copy_changes(const at::Tensor& target, const at::Tensor& value) {
  if (target.data_ptr() == value.data_ptr()) return;
  if (target.scalar_type() == value.scalar_type()) {
    target.copy_(value);
    return;
  }
  const auto unchanged = target.to(value.scalar_type()) == value;
  target.copy_(at::where(unchanged, target, value.to(target.scalar_type())));
}

}  // namespace

UnitGatherer::UnitGatherer(ShardExchange exchange, Residence residence)
    : exchange_(std::move(exchange)), residence_(residence) {}

void UnitGatherer::add(Unit& unit) {
  units_.push_back(&unit);
  unit.gatherer = this;
  for (auto* storage : {&unit.values, &unit.gradients}) {
    if (storage->is_current())
      storage->whole.show();
    else
      storage->whole.hide(reason_of_absence(*storage));
  }
  unit.values.shard.show();
}

void UnitGatherer::touch(c10::ArrayRef<FlatStorage*> storages) {
  const auto phase = torch::autograd::get_current_graph_task_id() != -1 ? Phase::backward
                     : at::GradMode::is_enabled()                       ? Phase::forward
                                                                        : Phase::inference;
  const EngineScope ours;
  bool gradients = false;
  for (auto* storage : storages) {
    if (storage->kind() == FlatKind::values) visit(storage->unit(), phase, storages);
    gradients = gradients || storage->kind() == FlatKind::gradients;
  }
  if (gradients)  // a loop over them holds one unit's at a time
    for (auto* storage : std::vector<GatheredStorage*>(live_))
      if (!is_values(*storage) && !std::ranges::count(storages, &storage->whole)) release(*storage);
  for (auto* storage : storages)
    if (is_whole(*storage)) ensure(gathered_of(*storage));
}

void UnitGatherer::visit(Unit& unit, Phase phase, c10::ArrayRef<FlatStorage*> together) {
  // What is held is read by one rank alone at times, to save it.
  if (is_held(unit)) return;
  if (residence_ == Residence::always) {
    // Ranks may touch different units first, or not all of them: each gathers all, in one order.
    if (!unit.values.is_current()) refresh();
    return;
  }
  if (current_ == &unit) return;
  if (current_) next_[place_] = &unit;
  previous_ = std::exchange(current_, &unit);
  place_ = place_of(phase);
  const auto known = next_.find(place_);
  Unit* const next = known == next_.end() ? nullptr : known->second;

  const bool keeps_values =
      residence_ == Residence::forward_to_backward && phase != Phase::inference;
  for (auto* storage : std::vector<GatheredStorage*>(live_)) {
    const auto& holder = storage->whole.unit();
    if (std::ranges::count(together, &storage->whole)) continue;
    if (is_values(*storage) && (keeps_values || &holder == next || is_held(holder))) continue;
    release(*storage);
  }
  ensure(unit.values);
  if (next && !next->values.is_current() && !is_under_way(next->values)) {
    start(next->values);
    ++counts_.prefetched;
  }
}

void UnitGatherer::refresh() {
  if (residence_ != Residence::always) return;
  const EngineScope ours;
  for (auto* unit : units_) {
    auto& values = unit->values;
    if (values.is_current()) continue;
    const auto flight = std::ranges::find(flights_, &values, &Flight::storage);
    if (flight != flights_.end() && flight->version == values.version) continue;
    land(values);  // of an older version
    start(values);
  }
}

bool UnitGatherer::is_under_way(const GatheredStorage& storage) const {
  return std::ranges::any_of(flights_,
                             [&](const Flight& flight) { return flight.storage == &storage; });
}

uint64_t UnitGatherer::place_of(Phase phase) const {
  const auto number = [](const Unit* unit) {
    return unit ? static_cast<uint64_t>(unit->index) + 1 : uint64_t{0};
  };
  return (static_cast<uint64_t>(phase) << 60) | (number(previous_) << 30) | number(current_);
}

void UnitGatherer::ensure(GatheredStorage& storage) {
  land(storage);
  if (!storage.is_current()) {
    start(storage);
    land(storage);
  }
  if (!storage.whole.is_shown()) storage.whole.show();
}

void UnitGatherer::start(GatheredStorage& storage) {
  auto& whole = storage.whole;
  // Units of one size in another order are one call to c10d. A backward tells them apart at its end;
  // without gradients debug mode alone does.
  if (exchange_.group().debugging())
    exchange_.group().compare_calls(fmt::format("the gathering of {}", whole.unit().title()),
                                    CallSite::current());
  if (!whole.is_present()) {
    const bool fits = spare_.second && spare_.first == whole.flat().nbytes() &&
                      spare_.second.device() == whole.flat().device();
    whole.allocate(fits ? std::move(spare_.second) : c10::DataPtr());
    spare_ = {};
  }
  if (!std::ranges::count(live_, &storage)) live_.push_back(&storage);
  ++(is_values(storage) ? counts_.gathers : counts_.gradient_gathers);
  counts_.received +=
      static_cast<int64_t>(whole.flat().nbytes()) / exchange_.size() * (exchange_.size() - 1);
  trace_ = (trace_ * 0x100000001b3ULL) ^
           (static_cast<uint64_t>(whole.unit().index) * 2 + (is_values(storage) ? 0 : 1) + 1);
  try {
    flights_.push_back({&storage, storage.version,
                        exchange_.gather(whole.flat(), storage.shard.flat(), tag_of(storage))});
  } catch (const std::exception& failure) {
    if (dynamic_cast<const Error*>(&failure)) throw;
    exchange_.world().fail_operation(gathering_of(storage).c_str(), failure);
  }
}

void UnitGatherer::land(GatheredStorage& storage) {
  const auto flight = std::ranges::find(flights_, &storage, &Flight::storage);
  if (flight == flights_.end()) return;
  auto landing = std::move(*flight);
  flights_.erase(flight);
  try {
    landing.pending.wait();
  } catch (const OtherGather& other) {
    fail_as_different(storage, other);
  } catch (const std::exception& failure) {
    if (dynamic_cast<const Error*>(&failure)) throw;
    exchange_.world().fail_operation(gathering_of(storage).c_str(), failure);
  }
  storage.gathered = landing.version;
  storage.shard.drop_pages();
}

void UnitGatherer::fail_as_different(const GatheredStorage& mine, const OtherGather& other) const {
  const auto its_unit = std::ranges::find(units_, unit_of_tag(other.tag), &Unit::index);
  const auto its_title = its_unit == units_.end()          ? "something else"
                         : *its_unit == &mine.whole.unit() ? "the same for another time"
                                                           : (*its_unit)->title();
  const auto& world = exchange_.world();
  const Error error(
      ErrorCategory::collective,
      fmt::format(
          "accel: rank {}: ranks gathered different units: {} here, and {} on rank {}; every "
          "rank must run the same modules in the same order, and touch sharded parameters "
          "alike (print norms on all ranks, not on one)",
          world.rank(), mine.whole.unit().title(), its_title,
          world.rank() - exchange_.rank() + other.rank));
  world.leave_word(error.what());
  throw error;
}

void UnitGatherer::release(GatheredStorage& storage) {
  land(storage);
  if (storage.whole.is_shown()) storage.whole.hide(reason_of_absence(storage));
  spare_ = {storage.whole.flat().nbytes(), storage.whole.release()};
  storage.gathered = -1;
  std::erase(live_, &storage);
}

void UnitGatherer::keep_part(GatheredStorage& storage, int64_t begin, int64_t end) const {
  const auto& shard = storage.shard.flat();
  const auto mine = exchange_.rank() * shard.numel();
  const auto from = std::max(begin, mine), to = std::min(end, mine + shard.numel());
  if (from < to)
    copy_changes(shard.narrow(0, from - mine, to - from),
                 storage.whole.flat().narrow(0, from, to - from));
}

void UnitGatherer::changed(GatheredStorage& storage) {
  // Of one process the whole is the shard.
  if (exchange_.size() == 1 && storage.is_current() &&
      storage.whole.flat().data_ptr() == storage.shard.flat().data_ptr())
    return;
  ++storage.version;
  if (storage.whole.is_shown()) storage.whole.hide(reason_of_absence(storage));
}

void UnitGatherer::written(FlatStorage& storage, const at::Tensor& tensor) {
  const EngineScope ours;
  auto& gathered = gathered_of(storage);
  if (is_whole(storage)) {
    const auto span = span_of(tensor);
    keep_part(gathered, span.begin, span.end);
    if (is_values(gathered) && is_held(storage.unit()) && gathered.is_current()) return;
  } else if (storage.kind() == FlatKind::value_shard) {
    // Autograd is to notice that what it saved of the parameter is another value now.
    for (auto& parameter : storage.unit().parameters) {
      const bool same_place = tensor.numel() > 0 && parameter.place == tensor.storage_offset() &&
                              parameter.part.size() == tensor.numel();
      if (parameter.piece.is_same(tensor) || same_place)
        parameter.parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
  changed(gathered);
}

void UnitGatherer::assign(ShardedParameter& parameter, Unit& unit, const at::Tensor& value) {
  const EngineScope ours;
  parameter.parameter.unsafeGetTensorImpl()->bump_version();
  const auto flat = in_memory_order(value.detach(), parameter.strides);
  auto& values = unit.values;
  if (parameter.part.size() > 0)
    copy_changes(values.shard.flat().narrow(0, parameter.place, parameter.part.size()),
                 flat.narrow(0, parameter.part.begin, parameter.part.size()));
  if (is_held(unit) && values.is_current())
    values.whole.flat().narrow(0, parameter.offset, flat.numel()).copy_(flat);
  else
    changed(values);
}

void UnitGatherer::hold(Unit& unit, Edits edits) {
  const EngineScope ours;
  ensure(unit.values);
  auto& held = held_[&unit];
  ++held.times;
  if (edits == Edits::discard) held.before = unit.values.shard.flat().clone();
}

void UnitGatherer::unhold(Unit& unit, Edits edits) {
  const EngineScope ours;
  const auto place = held_.find(&unit);
  if (place == held_.end()) return;
  auto& values = unit.values;
  if (edits == Edits::keep && values.is_current()) {
    keep_part(values, 0, unit.layout.size());
    changed(values);
  } else if (edits == Edits::discard && place->second.before.defined()) {
    values.shard.flat().copy_(place->second.before);
    changed(values);
  }
  if (--place->second.times == 0) held_.erase(place);
}

void UnitGatherer::give_back(Unit& unit) {
  const EngineScope ours;
  for (auto* storage : std::vector<GatheredStorage*>(live_))
    if (&storage->whole.unit() == &unit &&
        (!is_values(*storage) || residence_ != Residence::always))
      release(*storage);
}

void UnitGatherer::end_of_backward() {
  for (auto* unit : units_)
    if (!is_held(*unit)) give_back(*unit);
  spare_ = {};
  previous_ = current_ = nullptr;
  place_ = 0;
}

void UnitGatherer::release_all() noexcept {
  const EngineScope ours;
  held_.clear();
  for (auto* storage : std::vector<GatheredStorage*>(live_)) {
    try {
      land(*storage);
    } catch (const std::exception&) {  // what was under way has failed, and is of no use now
    }
    if (!is_values(*storage) || residence_ != Residence::always) release(*storage);
  }
  spare_ = {};
  previous_ = current_ = nullptr;
  place_ = 0;
}

int64_t UnitGatherer::take_trace() noexcept {
  return static_cast<int64_t>(std::exchange(trace_, 0) >> 1);
}

}  // namespace accel::detail
