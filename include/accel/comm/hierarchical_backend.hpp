// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A c10d backend for CPU tensors of ranks on several hosts: shared memory (shm_backend.hpp) inside
// each, a network between them. Includes c10d's headers, so for the bodies of this layer and for
// those who build a group themselves.
#pragma once

#include <accel/comm/host_layout.hpp>
#include <accel/comm/shm_backend.hpp>

#include <functional>
#include <memory>
#include <string>

namespace accel {

/// Reduces inside the host, then over the network between ranks that have the same place on their
/// hosts, each a share of the tensor, and spreads the shares inside: what a host sends and receives
/// does not grow with its number of ranks. So for all-reduce and broadcast, and, where every host
/// has as many ranks, for all-gather and reduce-scatter; everything else is the network's.
///
/// Sums are taken in rank order inside a host, then in the order of the hosts; 16-bit floats are
/// rounded after each of the two. Every rank gets the same bits.
/// Calls, errors and their sentences are as for ShmBackend; where one rank fails, the others of its
/// host and those of its place on the other hosts fail with it.
class HierarchicalBackend : public c10d::Backend {
 public:
  /// Opens the network's backend between ranks that all call it, over a store of their own.
  using Network = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size)>;

  /// Every rank must construct, with the same layout of at least two hosts, and a store that nothing
  /// else uses.
  HierarchicalBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                      detail::HostLayout layout, const Network& network,
                      c10::intrusive_ptr<ShmBackend::Options> options);
  /// What is under way fails; wait for it first.
  ~HierarchicalBackend() override;

  const std::string getBackendName() const override { return "accel_hierarchical"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return started_; }

  /// The group of this rank's host; null where it is alone there.
  [[nodiscard]] ShmBackend* inside() const { return inside_.get(); }

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  // Over the network.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  using Milliseconds = std::chrono::milliseconds;

  [[nodiscard]] WorkPtr start(const char* what, c10d::OpType type, Tensors results, bool is_async,
                              std::function<void()> stages);
  void wait_inside(const WorkPtr& work) const;
  void wait_across(const WorkPtr& work) const;

  [[nodiscard]] at::Tensor share_of(const at::Tensor& row, int place) const;
  void spread_inside(const at::Tensor& row, Milliseconds timeout) const;
  void reduce_inside(at::Tensor row, const c10d::ReduceOp& op, Milliseconds timeout) const;
  void exchange_and_reduce(const at::Tensor& mine, const at::Tensor& pieces,
                           const c10d::ReduceOp& op, Milliseconds timeout) const;
  void reduce_across(const at::Tensor& row, const c10d::ReduceOp& op, Milliseconds timeout) const;
  void all_gather(const at::Tensor& output, const at::Tensor& input, Milliseconds timeout) const;
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
                      Milliseconds timeout) const;

  detail::HostLayout layout_;
  int host_;
  int place_;
  c10::intrusive_ptr<ShmBackend::Options> options_;
  c10::intrusive_ptr<ShmBackend> inside_;
  c10::intrusive_ptr<c10d::Backend> across_;   ///< the ranks of this place; none beyond the columns
  c10::intrusive_ptr<c10d::Backend> network_;  ///< all ranks
  std::shared_ptr<detail::ShmQueue> queue_;
  std::string failure_;  ///< of an earlier operation; the queue's jobs alone use it
  std::uint64_t started_ = 0;
};

}  // namespace accel
