// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Gradients of units to shards, while backward still runs: a unit whose gradients are all there is
// reduced, the mean over the ranks, in an order that is the same on all of them. Comes after
// unit_gatherer.hpp.
#pragma once

#include <accel/engine/gradient_wire.hpp>
#include <accel/engine/sharded/unit_gatherer.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace accel::detail {

class UnitReducer {
 public:
  /// `shards_each_batch`: whole gradients may not outlive a backward, so that each has to reduce.
  UnitReducer(std::vector<std::unique_ptr<Unit>>& units, UnitGatherer& gatherer,
              const GradientWire& wire, bool shards_each_batch);
  ~UnitReducer();
  UnitReducer(const UnitReducer&) = delete;
  UnitReducer& operator=(const UnitReducer&) = delete;

  /// Takes part in every backward from now on, once the parameters are the sharded ones.
  void watch_all();

  /// The next backward is to reduce. What was reduced before and not cleared is added to.
  void arm();
  /// That backward is over: waits for its reductions, and gives the parameters their gradients. A
  /// parameter that no rank used keeps what it had. Every rank must call this. Throws
  /// Error(collective), on every rank, where ranks gathered different units.
  void finish();
  /// Waits for what was started, and forgets it.
  void abandon();
  /// Bytes of other ranks' gradients so far, inside a replica.
  [[nodiscard]] int64_t received() const noexcept { return received_; }

 private:
  struct State {
    at::Tensor parts;  ///< gradients of all parameters, in the dtype of the wire
    at::Tensor sum;    ///< of this micro-batch's, where it is to be added
    int awaited = 0;   ///< parameters whose gradient is still to come
    bool launched = false;
    std::vector<char> used;  ///< by this rank
    std::vector<char> is_awaited;
    std::vector<char> accumulates;  ///< has gradients of earlier micro-batches
    PendingExchange pending;
  };

  void watch(Unit& unit, ShardedParameter& parameter, size_t index);
  void arrived(Unit& unit, ShardedParameter& parameter, size_t index);
  void take(Unit& unit, ShardedParameter& parameter, size_t index);
  [[nodiscard]] at::Tensor parts_for(const Unit& unit);
  void launch_in_order();
  void launch(Unit& unit);
  void land(Unit& unit);
  void learn_order();
  [[nodiscard]] std::vector<int64_t> used_anywhere();

  std::vector<std::unique_ptr<Unit>>& units_;
  UnitGatherer& gatherer_;
  GradientWire wire_;
  bool shards_each_batch_;
  std::vector<State> states_;
  std::vector<size_t> order_;      ///< of reductions
  std::vector<size_t> completed_;  ///< in this backward
  size_t next_ = 0;                ///< in the order
  bool learned_ = false;
  bool armed_ = false;
  int64_t received_ = 0;
  std::deque<Unit*> flying_;
  at::Tensor spare_;  ///< for the parts of the next unit of that size
  std::vector<std::pair<torch::autograd::Node*, uintptr_t>> hooks_;
};

}  // namespace accel::detail
