// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_work.hpp>

#include <accel/detail/error.hpp>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <utility>

namespace accel::detail {
namespace {

/// Failed collectives as c10d's users know them: what NCCL throws, too.
std::exception_ptr as_c10d(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const Error& error) {
    if (error.category() == ErrorCategory::collective)
      return std::make_exception_ptr(
          c10::DistBackendError({__func__, __FILE__, __LINE__}, error.what()));
  } catch (...) {
    // as it is
  }
  return failure;
}

}  // namespace

ShmWork::ShmWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
    : Work(rank, type),
      results_(std::move(results)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
}

bool ShmWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout && queue_ && !isCompleted()) queue_->help(*this);
  return Work::wait(timeout);
}

void ShmWork::complete(const std::exception_ptr& cause, int source) {
  const auto failure = as_c10d(cause);
  source_ = source;
  // The future first: who waits for the work may ask for the future's value at once.
  if (failure)
    future_->setError(failure);
  else
    future_->markCompleted(c10::IValue(results_));
  finish(failure);
}

ShmQueue::~ShmQueue() { close(); }

void ShmQueue::submit(const c10::intrusive_ptr<ShmWork>& work, std::function<void()> job,
                      bool is_async) {
  work->job_ = std::move(job);
  work->queue_ = shared_from_this();
  {
    const std::scoped_lock lock(mutex_);
    if (is_closing_) fail(ErrorCategory::usage, "accel: the group has been closed");
    row_.push_back(work);
    if (is_async && !thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  if (is_async)
    changed_.notify_all();
  else
    help(*work);
}

void ShmQueue::run() {
  // A core of its own is all that it may count on; the caller's threads compute.
  at::set_num_threads(1);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_closing_ || (!is_busy_ && !row_.empty()); });
    if (is_closing_) return;
    run_next(lock);
  }
}

void ShmQueue::help(ShmWork& work) {
  std::unique_lock lock(mutex_);
  while (!work.isCompleted()) {
    if (!is_busy_ && !row_.empty())
      run_next(lock);
    else
      changed_.wait(lock);
  }
}

void ShmQueue::run_next(std::unique_lock<std::mutex>& lock) {
  const auto work = std::move(row_.front());
  row_.pop_front();
  is_busy_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    const at::NoGradGuard no_grad;
    work->job_();
  } catch (...) {
    failure = std::current_exception();
  }
  work->job_ = nullptr;  // its tensors
  lock.lock();
  is_busy_ = false;
  lock.unlock();
  // Callbacks of the future run here, and may wait for another operation of this group.
  work->complete(failure);
  lock.lock();
  changed_.notify_all();
}

void ShmQueue::close() {
  std::deque<c10::intrusive_ptr<ShmWork>> rest;
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
    rest.swap(row_);
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& work : rest)
    work->complete(std::make_exception_ptr(
        Error(ErrorCategory::usage, "accel: the group was closed before the operation had run")));
}

}  // namespace accel::detail
