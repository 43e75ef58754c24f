// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A c10d backend for CPU tensors of ranks that share a host: tensors, works and futures over the
// bytes of shm_ring.hpp and shm_mailbox.hpp. Anything that takes a c10d process group can use it:
// c10d::Reducer, functional collectives, code of the user. Includes c10d's headers, so for the bodies
// of this layer and for those who build a group themselves.
#pragma once

#include <accel/comm/shm_arena.hpp>
#include <accel/comm/shm_mailbox.hpp>
#include <accel/comm/shm_ring.hpp>
#include <accel/comm/shm_segment.hpp>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace accel {

namespace detail {
class ShmQueue;
}

/// Collectives through shared memory. Operations return at once; those of one group run one after
/// the other, on a thread of the group or in the wait() of whoever waits first. Sends and receives
/// run beside them. Tensors may be of any dtype and strided layout (no sparse ones); 16-bit floats
/// are summed in fp32, in rank order, and every rank gets the same bits. What cannot be right
/// (an average of integers, an output that overlaps itself) throws Error(usage) at the call.
///
/// Every rank must make the same calls in the same order; where they do not, or a rank is gone, all
/// get c10::DistBackendError with a sentence from wait(), and the group is of no more use.
class ShmBackend : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds startup = std::chrono::milliseconds(60'000),
                     std::chrono::milliseconds collective = std::chrono::milliseconds(300'000));
    std::chrono::milliseconds startup_timeout;
    detail::RingOptions ring{};  ///< an arena as large as the memory of the host, up to 16 GiB
  };

  /// Every rank must construct, with a store that nothing else uses. Throws Error(collective) where
  /// a rank does not come within startup_timeout.
  ShmBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             c10::intrusive_ptr<Options> options);
  /// What is under way fails; wait for it first.
  ~ShmBackend() override;

  const std::string getBackendName() const override { return options_->backend; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return started_; }

  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }

  /// A tensor of `size` elements in shared memory. Where those of all ranks lie there, all_reduce
  /// makes no copy. It may outlive the group. Local. Throws Error(usage) where there is no room.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  /// Memory for such a tensor; null where there is no room.
  [[nodiscard]] c10::DataPtr allocate(std::size_t bytes);

  /// Says why this rank stops: its later collectives fail, and those of the others, with that reason.
  void stop(const std::string& why) { ring_->peers().stop(why); }
  /// Ends this rank's waits, on whatever thread; the group is of no more use.
  void interrupt() { ring_->peers().interrupt(); }

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
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

  /// A group of `ranks` (this group's numbers); null for a rank that is not among them. Those that
  /// are must call this.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

 private:
  using Milliseconds = std::chrono::milliseconds;
  using Job = std::function<void()>;

  [[nodiscard]] Milliseconds timeout_or_default(Milliseconds asked) const;
  [[nodiscard]] WorkPtr start(c10d::OpType type, Tensors results, bool is_async, Job job);
  void check_rank(const char* what, int64_t rank) const;

  [[nodiscard]] Job all_gather_job(const char* what, Tensors outputs, const at::Tensor& input,
                                   Milliseconds timeout);
  [[nodiscard]] Job reduce_scatter_job(const char* what, const at::Tensor& output, Tensors inputs,
                                       const c10d::ReduceOp& op, Milliseconds timeout);
  [[nodiscard]] Job all_to_all_job(const char* what, Tensors outputs, Tensors inputs,
                                   Milliseconds timeout);
  [[nodiscard]] WorkPtr receive(const at::Tensor& tensor, int from, int tag);

  /// What tensors hold on to.
  struct Memory {
    Memory(detail::SharedSegment whole, std::span<std::byte> part)
        : segment(std::move(whole)), arena(part) {}
    detail::SharedSegment segment;
    detail::ShmArena arena;
  };

  c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Memory> memory_;
  std::unique_ptr<detail::ShmRing> ring_;
  std::unique_ptr<detail::ShmMailbox> mailbox_;
  std::shared_ptr<detail::ShmQueue> queue_;
  std::uint64_t started_ = 0;
};

}  // namespace accel
