// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads that prepare numbered results ahead of a consumer who takes them in order. Knows nothing
// of datasets or tensors; loader_epoch.hpp gives it the batches of an epoch. The order is that of
// one thread, whatever the number of threads.
#pragma once

#include <accel/detail/error.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <latch>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace accel::detail {

/// Work for the threads of a Prefetcher: the results first .. last - 1.
struct PrefetchRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  int workers = 1;
  int capacity = 2;  ///< results that may be in the making or waiting at a time
};

/// Makes results ahead. One consumer; destroying it early waits for no more than what each thread
/// is making right now.
template <class Result>
class Prefetcher {
 public:
  /// Makes result `number` on thread `worker` (0 .. workers-1). Called by all threads at once.
  using Produce = std::function<Result(int worker, std::int64_t number)>;

  /// Returns once each thread has run `on_thread_start`, which must not throw.
  Prefetcher(const PrefetchRange& range, Produce produce,
             const std::function<void()>& on_thread_start)
      : produce_(std::move(produce)),
        slots_(static_cast<std::size_t>(range.capacity)),
        end_(range.last),
        next_to_make_(range.first),
        next_to_take_(range.first),
        started_(range.workers) {
    workers_.reserve(static_cast<std::size_t>(range.workers));
    int worker = 0;
    try {
      for (; worker < range.workers; ++worker)
        workers_.emplace_back([this, worker, &on_thread_start](const std::stop_token& stop) {
          on_thread_start();
          started_.count_down();
          work(stop, worker);
        });
    } catch (const std::system_error& problem) {
      // The system has no more threads; those that run still use `on_thread_start`.
      started_.count_down(range.workers - worker);
      started_.wait();
      stop();
      fail(ErrorCategory::config, "num_workers is {}, and thread {} could not be started: {}",
           range.workers, worker, problem.what());
    }
    started_.wait();
  }

  ~Prefetcher() { stop(); }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next result in order. Throws what making it threw; there is nothing to take after that.
  Result next() {
    std::unique_lock lock(mutex_);
    if (next_to_take_ >= end_) fail(ErrorCategory::usage, "nothing is left to be prefetched");
    Slot& slot = slot_of(next_to_take_);
    made_.wait(lock, [&] { return !std::holds_alternative<std::monostate>(slot); });
    Slot taken = std::exchange(slot, Slot{});
    ++next_to_take_;
    lock.unlock();
    room_.notify_one();
    if (auto* error = std::get_if<std::exception_ptr>(&taken))
      std::rethrow_exception(std::move(*error));
    return std::get<Result>(std::move(taken));
  }

 private:
  using Slot = std::variant<std::monostate, Result, std::exception_ptr>;

  Slot& slot_of(std::int64_t number) {
    return slots_[static_cast<std::size_t>(number) % slots_.size()];
  }

  std::optional<std::int64_t> claim(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto capacity = static_cast<std::int64_t>(slots_.size());
    room_.wait(lock, stop,
               [&] { return next_to_make_ >= end_ || next_to_make_ < next_to_take_ + capacity; });
    if (stop.stop_requested() || next_to_make_ >= end_) return std::nullopt;
    return next_to_make_++;
  }

  void work(const std::stop_token& stop, int worker) {
    while (const auto number = claim(stop)) {
      Slot made;
      try {
        made.template emplace<Result>(produce_(worker, *number));
      } catch (...) {
        made.template emplace<std::exception_ptr>(std::current_exception());
      }
      const bool failed = std::holds_alternative<std::exception_ptr>(made);
      {
        std::lock_guard lock(mutex_);
        // The consumer will see the failure at its place in the order; what comes behind it is
        // never taken.
        if (failed) end_ = std::min(end_, *number + 1);
        slot_of(*number) = std::move(made);
      }
      made_.notify_one();
      if (failed) room_.notify_all();
    }
  }

  void stop() {
    for (auto& worker : workers_) worker.request_stop();
    workers_.clear();  // joins
  }

  Produce produce_;
  std::mutex mutex_;
  std::condition_variable_any room_;  // for the makers: a slot is free, or there is no more work
  std::condition_variable made_;      // for the consumer: a slot is filled
  std::vector<Slot> slots_;
  std::int64_t end_;
  std::int64_t next_to_make_;
  std::int64_t next_to_take_;
  std::latch started_;
  std::vector<std::jthread> workers_;
};

}  // namespace accel::detail
