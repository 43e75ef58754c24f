// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// When units are whole. It is told of each operation that touches one, gathers what is not there,
// gives back what is no longer needed, and gathers ahead what was touched next the last time.
// Decisions depend on the order of touches alone, never on time, so that all ranks make the same.
// Comes after unit.hpp and shard_exchange.hpp; sharded_dispatch.hpp calls it.
#pragma once

#include <accel/engine/sharded/shard_exchange.hpp>
#include <accel/engine/sharded/sharded_parallel.hpp>
#include <accel/engine/sharded/unit.hpp>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accel::detail {

/// How long a unit's parameters stay whole.
enum class Residence : unsigned char {
  always,               ///< they are only brought up to date: ZeRO-1 and 2
  forward_to_backward,  ///< from forward to the end of backward: SHARD_GRAD_OP
  while_used,           ///< until another unit is touched: ZeRO-3
};

/// What a gatherer did so far.
struct GatherCounts {
  int64_t gathers = 0;     ///< of parameters
  int64_t prefetched = 0;  ///< of these, started before they were needed
  int64_t gradient_gathers = 0;
  int64_t received = 0;  ///< bytes of other ranks' shards
  bool operator==(const GatherCounts&) const = default;
};

/// All members but `counts` are collective in effect: every rank must call them alike.
class UnitGatherer {
 public:
  /// One unit gathered ahead, besides the one in use, is what hides a gather and bounds the memory.
  UnitGatherer(ShardExchange exchange, Residence residence);
  UnitGatherer(const UnitGatherer&) = delete;
  UnitGatherer& operator=(const UnitGatherer&) = delete;

  [[nodiscard]] const ShardExchange& exchange() const noexcept { return exchange_; }

  /// Takes up a unit whose storages are as they are to be.
  void add(Unit& unit);

  /// An operation is about to read or write these.
  void touch(c10::ArrayRef<FlatStorage*> storages);
  /// An operation has written to a tensor on one of them: this rank's part of what it wrote is kept.
  void written(FlatStorage& storage, const at::Tensor& tensor);
  /// Gives a parameter a value without gathering it: this rank's part is copied. Local, and to be
  /// called on every rank with the same value.
  void assign(ShardedParameter& parameter, Unit& unit, const at::Tensor& value);

  /// Where units are whole always: begins to bring them up to date, after a step.
  void refresh();

  /// Holds a unit whole, whatever is touched, until `unhold`.
  void hold(Unit& unit, Edits edits);
  void unhold(Unit& unit, Edits edits);
  /// Gives back what is whole of a unit, if it is not whole always.
  void give_back(Unit& unit);

  /// A backward has ended: nothing is needed.
  void end_of_backward();
  /// Waits for what was started, and gives everything back. Never throws.
  void release_all() noexcept;

  [[nodiscard]] const GatherCounts& counts() const noexcept { return counts_; }
  /// A number for the gathers since it was last asked for: the same on ranks that gathered the same
  /// units in the same order.
  [[nodiscard]] int64_t take_trace() noexcept;

 private:
  enum class Phase : unsigned char { inference, forward, backward };
  struct Flight {
    GatheredStorage* storage = nullptr;
    int64_t version = 0;  ///< that travels
    PendingExchange pending;
  };
  struct Held {
    int times = 0;
    at::Tensor before;  ///< this rank's part, to be put back
  };

  void visit(Unit& unit, Phase phase, c10::ArrayRef<FlatStorage*> together);
  void ensure(GatheredStorage& storage);
  void start(GatheredStorage& storage);
  void land(GatheredStorage& storage);
  [[noreturn]] void fail_as_different(const GatheredStorage& mine, const OtherGather& other) const;
  void release(GatheredStorage& storage);
  void keep_part(GatheredStorage& storage, int64_t begin, int64_t end) const;
  void changed(GatheredStorage& storage);
  [[nodiscard]] bool is_held(const Unit& unit) const { return held_.contains(&unit); }
  [[nodiscard]] bool is_under_way(const GatheredStorage& storage) const;
  [[nodiscard]] uint64_t place_of(Phase phase) const;

  ShardExchange exchange_;
  Residence residence_;
  std::vector<Unit*> units_;
  std::vector<GatheredStorage*> live_;  ///< whole, or about to be
  std::vector<Flight> flights_;
  /// Memory of what was given back last, for the next unit of that size: fresh pages cost as much as
  /// a copy. None between steps.
  std::pair<size_t, c10::DataPtr> spare_;
  std::unordered_map<const Unit*, Held> held_;
  Unit* previous_ = nullptr;
  Unit* current_ = nullptr;
  uint64_t place_ = 0;  ///< where in a step we are: what was touched last, and in which phase
  std::unordered_map<uint64_t, Unit*> next_;  ///< what was touched after that, the last time
  GatherCounts counts_;
  uint64_t trace_ = 0;
};

}  // namespace accel::detail
