// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The two collectives of sharded training, in the form that is quick over the transport at hand:
// shards to a whole on every rank, and wholes to the sum of each rank's part. Comes before
// unit_gatherer and unit_reducer, which say when.
#pragma once

#include <accel/comm/communicator.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <stdexcept>
#include <vector>

namespace c10d {
class Work;
}

namespace accel::detail {

/// A collective that was started. To be waited for once.
class PendingExchange {
 public:
  PendingExchange();
  PendingExchange(std::vector<c10::intrusive_ptr<c10d::Work>> works, std::function<void()> after,
                  std::vector<at::Tensor> kept);
  PendingExchange(PendingExchange&&) noexcept;
  PendingExchange& operator=(PendingExchange&&) noexcept;
  ~PendingExchange();

  [[nodiscard]] bool is_pending() const noexcept { return pending_; }
  /// Returns when the result is there; at once where nothing is pending.
  void wait();

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::function<void()> after_;
  std::vector<at::Tensor> kept_;  ///< what the works read and write
  bool pending_ = false;
};

/// A rank of the group gathers something else.
struct OtherGather : std::runtime_error {
  OtherGather(int its_rank, int its_tag)
      : std::runtime_error("ranks gather different things"), rank(its_rank), tag(its_tag) {}
  int rank;
  int tag;
};

/// The ranks that a model is sharded over, and those that hold the same shard of other replicas. Every
/// rank must make the same calls in the same order.
class ShardExchange {
 public:
  /// One replica, over all ranks.
  explicit ShardExchange(const Communicator& world);
  /// Replicas of `group_size` consecutive ranks each. Every rank must call this. Throws Error(config)
  /// where that does not divide the ranks.
  ShardExchange(const Communicator& world, int group_size);

  [[nodiscard]] const Communicator& world() const noexcept { return world_; }
  /// The ranks of this rank's replica.
  [[nodiscard]] const Communicator& group() const noexcept { return group_; }
  [[nodiscard]] int rank() const noexcept { return group_.rank(); }
  [[nodiscard]] int size() const noexcept { return group_.size(); }

  /// Fills `whole` with the ranks' shards in rank order. One rank's shard may be its own part of
  /// `whole`. A shard of another dtype is cast. `tag`, from 0 to below 2^31 - 1, says of what: over Gloo
  /// waiting throws OtherGather, on every rank, where ranks gather different things.
  [[nodiscard]] PendingExchange gather(const at::Tensor& whole, const at::Tensor& shard,
                                       int tag) const;
  /// Fills `shard` with the sum over all ranks, in the dtype of `parts`, of this rank's part of their
  /// `parts`, which may be overwritten. Inside a replica in rank order.
  [[nodiscard]] PendingExchange reduce(const at::Tensor& shard, const at::Tensor& parts) const;

 private:
  [[nodiscard]] PendingExchange gather_over_gloo(const at::Tensor& whole, int tag) const;
  [[nodiscard]] PendingExchange reduce_in_group(const at::Tensor& shard,
                                                const at::Tensor& parts) const;

  Communicator world_;
  Communicator group_;
  Communicator replicas_;
  bool over_gloo_ = false;
};

}  // namespace accel::detail
