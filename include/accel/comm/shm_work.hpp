// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What an operation of shm_backend.hpp gives to its caller, and the row in which the operations of a
// group wait for their turn. For the bodies of this layer: includes c10d's headers.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace accel::detail {

class ShmQueue;

/// An operation that was begun. Its future's value is the list of result tensors.
class ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType type, std::vector<at::Tensor> results);

  /// Without a timeout, runs the operation here if its turn has not come yet.
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  int sourceRank() const override { return source_; }

  /// Says that it is done, or what went wrong: an Error(collective) becomes c10d's exception. Once.
  void complete(const std::exception_ptr& cause, int source = -1);

 private:
  friend class ShmQueue;
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  int source_ = -1;
  std::function<void()> job_;
  std::shared_ptr<ShmQueue> queue_;
};

/// Runs the operations of a group one after the other, in the order in which they came: on a thread
/// of its own, so that they go on while the caller computes, or on the thread of a caller that waits,
/// which saves the change of threads.
class ShmQueue : public std::enable_shared_from_this<ShmQueue> {
 public:
  ~ShmQueue();

  /// Puts it at the end of the row. Unless `is_async`, returns when it is done.
  void submit(const c10::intrusive_ptr<ShmWork>& work, std::function<void()> job, bool is_async);

  /// Returns when `work` is done; runs what stands before it, and itself, if nobody else does.
  void help(ShmWork& work);

  /// Ends the thread, after the operation that runs. The rest fail.
  void close();

 private:
  void run();
  void run_next(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<ShmWork>> row_;
  bool is_busy_ = false;
  bool is_closing_ = false;
  std::thread thread_;  ///< from the first operation on that nobody waits for at once
};

}  // namespace accel::detail
