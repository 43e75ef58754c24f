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

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

GatheredStorage& gathered_of(FlatStorage& storage) {
  auto& unit = storage.unit();
  const auto kind = storage.kind();
  return kind == FlatKind::values || kind == FlatKind::value_shard ? unit.values : unit.gradients;
}

bool is_whole(const FlatStorage& storage) {
  return storage.kind() == FlatKind::values || storage.kind() == FlatKind::gradients;
}

std::string reason_of_absence(const GatheredStorage& storage) {
  return fmt::format("accel: the memory of a {} of {} was read directly while it is sharded; use "
                     "tensor operations, "
                     "which gather it, or accelerator.summon_full_params",
                     storage.whole.kind() == FlatKind::values ? "parameter" : "gradient",
                     storage.whole.unit().title());
}

/// The elements of a storage between the first and the last that a tensor has.
Piece span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {tensor.storage_offset(), last + 1};
}

}  // namespace

UnitGatherer::UnitGatherer(ShardExchange exchange, Residence residence)
    : exchange_(std::move(exchange)), residence_(residence) {}

void UnitGatherer::touch(c10::ArrayRef<FlatStorage*> storages) {
  const EngineScope ours;
  for (auto* storage : storages)
    if (storage->kind() == FlatKind::values) visit(storage->unit(), storages);
  for (auto* storage : storages)
    if (is_whole(*storage)) ensure(gathered_of(*storage));
}

void UnitGatherer::refresh() {
  if (residence_ != Residence::always) return;
  const EngineScope ours;
  for (auto* unit : units_)
    if (!unit->values.is_current() && !is_under_way(unit->values)) start(unit->values);
}

bool UnitGatherer::is_under_way(const GatheredStorage& storage) const {
  return std::ranges::any_of(flights_,
                             [&](const Flight& flight) { return flight.storage == &storage; });
}

void UnitGatherer::visit(Unit& unit, c10::ArrayRef<FlatStorage*> together) {
  if (current_ == &unit) return;
  if (residence_ == Residence::always) {
    // Ranks may touch different units first, or not all of them: each gathers all, in one order.
    if (!unit.values.is_current()) refresh();
    current_ = &unit;
    return;
  }
  if (current_) next_[place_] = &unit;
  previous_ = std::exchange(current_, &unit);
  place_ = place();
  const auto known = next_.find(place_);
  Unit* const next = known == next_.end() ? nullptr : known->second;

  for (auto* storage : std::vector<GatheredStorage*>(live_)) {
    auto& holder = storage->whole.unit();
    const bool is_values = storage == &holder.values;
    const bool used =
        std::ranges::any_of(together, [&](FlatStorage* other) { return other == &storage->whole; });
    if (used || (is_values && (&holder == next || pins_.contains(&holder)))) continue;
    if (!is_values || releases_now()) release(*storage);
  }
  ensure(unit.values);
  if (next && !next->values.is_current() && !is_under_way(next->values)) {
    start(next->values);
    ++counts_.prefetched;
  }
}

bool UnitGatherer::releases_now() const {
  return residence_ == Residence::while_used || (!in_backward() && !at::GradMode::is_enabled());
}

uint64_t UnitGatherer::place() const {
  const uint64_t phase = in_backward() ? 2 : at::GradMode::is_enabled() ? 1 : 0;
  const auto number = [](const Unit* unit) {
    return unit ? static_cast<uint64_t>(unit->index) + 1 : uint64_t{0};
  };
  return (phase << 60) | (number(previous_) << 30) | number(current_);
}

void UnitGatherer::ensure(GatheredStorage& storage) {
  const auto flight = std::ranges::find(flights_, &storage, &Flight::storage);
  if (flight != flights_.end()) {
    auto pending = std::move(flight->pending);
    flights_.erase(flight);
    pending.wait();
  }
  if (storage.is_current()) return;
  start(storage);
  ensure(storage);
}

void UnitGatherer::start(GatheredStorage& storage) {
  if (!storage.whole.is_present()) storage.whole.allocate();
  if (!std::ranges::count(live_, &storage)) live_.push_back(&storage);
  storage.gathered = storage.version;
  const bool is_values = storage.whole.kind() == FlatKind::values;
  ++(is_values ? counts_.gathers : counts_.gradient_gathers);
  trace_ = (trace_ * 0x100000001b3ULL) ^
           (static_cast<uint64_t>(storage.whole.unit().index) * 2 + (is_values ? 0 : 1) + 1);
  flights_.push_back({&storage, exchange_.gather(storage.whole.flat(), storage.shard.flat())});
}

void UnitGatherer::release(GatheredStorage& storage) {
  const auto flight = std::ranges::find(flights_, &storage, &Flight::storage);
  if (flight != flights_.end()) {
    auto pending = std::move(flight->pending);
    flights_.erase(flight);
    pending.wait();
  }
  storage.whole.release(reason_of_absence(storage));
  storage.gathered = -1;
  std::erase(live_, &storage);
}

void UnitGatherer::written(FlatStorage& storage, const at::Tensor& tensor) {
  const EngineScope ours;
  auto& gathered = gathered_of(storage);
  if (is_whole(storage)) {
    const auto chunk = gathered.shard.flat().numel(), begin = exchange_.rank() * chunk;
    const auto span = span_of(tensor);
    const auto from = std::max(span.begin, begin), to = std::min(span.end, begin + chunk);
    const auto target =
        from < to ? gathered.shard.flat().narrow(0, from - begin, to - from) : at::Tensor();
    const auto source = from < to ? gathered.whole.flat().narrow(0, from, to - from) : at::Tensor();
    if (target.defined() && target.data_ptr() != source.data_ptr()) target.copy_(source);
  }
  ++gathered.version;
}

void UnitGatherer::assign(ShardedParameter& parameter, Unit& unit, const at::Tensor& value) {
  const EngineScope ours;
  ++unit.values.version;
  if (parameter.part.size() == 0) return;
  const auto flat = in_memory_order(value.detach(), parameter.strides);
  const auto& shard = unit.values.shard.flat();
  shard
      .narrow(0, parameter.offset + parameter.part.begin - exchange_.rank() * unit.layout.chunk(),
              parameter.part.size())
      .copy_(flat.narrow(0, parameter.part.begin, parameter.part.size()));
}

void UnitGatherer::pin(Unit& unit) {
  const EngineScope ours;
  ++pins_[&unit];
  ensure(unit.values);
}

void UnitGatherer::keep_edits(Unit& unit) {
  const EngineScope ours;
  auto& values = unit.values;
  const auto mine =
      values.whole.flat().narrow(0, exchange_.rank() * unit.layout.chunk(), unit.layout.chunk());
  if (mine.data_ptr() != values.shard.flat().data_ptr()) values.shard.flat().copy_(mine);
  ++values.version;
}

void UnitGatherer::unpin(Unit& unit) {
  const auto place = pins_.find(&unit);
  if (place != pins_.end() && --place->second == 0) pins_.erase(place);
}

void UnitGatherer::end_of_backward() {
  const EngineScope ours;
  for (auto* storage : std::vector<GatheredStorage*>(live_)) {
    auto& holder = storage->whole.unit();
    if (storage == &holder.values && (residence_ == Residence::always || pins_.contains(&holder)))
      continue;
    release(*storage);
  }
  previous_ = current_ = nullptr;
  place_ = 0;
}

void UnitGatherer::add(Unit& unit) {
  units_.push_back(&unit);
  unit.gatherer = this;
  for (auto* storage : {&unit.values, &unit.gradients})
    if (!storage->whole.is_present()) storage->whole.release(reason_of_absence(*storage));
}

void UnitGatherer::release_all() {
  const EngineScope ours;
  for (auto& flight : flights_) try {
      flight.pending.wait();
    } catch (const std::exception&) {  // what was under way has failed, and is of no use now
    }
  flights_.clear();
  for (auto* storage : std::vector<GatheredStorage*>(live_))
    if (storage != &storage->whole.unit().values || residence_ != Residence::always)
      release(*storage);
  previous_ = current_ = nullptr;
  place_ = 0;
}

int64_t UnitGatherer::take_trace() noexcept {
  return static_cast<int64_t>(std::exchange(trace_, 0) >> 1);
}

}  // namespace accel::detail
