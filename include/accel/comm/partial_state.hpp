// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The processes of a job without the training: who we are, where our tensors live, and what ranks
// do together. The Accelerator is one of these; a program that only wants to share work among ranks
// uses it alone.
#pragma once

#include <accel/comm/collectives.hpp>
#include <accel/comm/communicator.hpp>
#include <accel/comm/object_collectives.hpp>
#include <accel/comm/ranks.hpp>
#include <accel/policy/device_kind.hpp>

#include <c10/core/Device.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace accel {

/// The device of this rank: of `automatic`, CUDA where there is one, else the CPU. `index` picks
/// among several; by default the local rank does. Throws Error(config) where the device does not
/// exist.
c10::Device device_of(device_kind kind, const Ranks& ranks, int index = -1);

/// The processes of a job. Copies share the connection. A CUDA device becomes the current one of
/// the thread that makes one.
class PartialState {
 public:
  /// Finds the ranks in the environment and connects them. Every rank must call this.
  explicit PartialState(device_kind device = device_kind::automatic,
                        const CommunicatorOptions& options = {}, int device_index = -1);

  /// Uses a connection that the caller has made.
  PartialState(Communicator communicator, c10::Device device);

  [[nodiscard]] int process_index() const noexcept { return communicator_.rank(); }
  [[nodiscard]] int local_process_index() const noexcept {
    return communicator_.ranks().local_rank;
  }
  [[nodiscard]] int num_processes() const noexcept { return communicator_.size(); }
  [[nodiscard]] bool is_main_process() const noexcept { return process_index() == 0; }
  [[nodiscard]] bool is_local_main_process() const noexcept { return local_process_index() == 0; }
  [[nodiscard]] bool is_last_process() const noexcept {
    return process_index() == num_processes() - 1;
  }
  [[nodiscard]] bool use_distributed() const noexcept { return num_processes() > 1; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  [[nodiscard]] const Communicator& communicator() const noexcept { return communicator_; }

  /// Prints a line, on the main process of each host only.
  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    if (!is_local_main_process()) return;
    fmt::print(format, std::forward<Arguments>(arguments)...);
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }

  /// Returns when every rank has called it.
  void wait_for_everyone(const CallSite& where = CallSite::current()) const {
    communicator_.barrier(where);
  }

  /// Calls `function` on one rank only. The others go on at once.
  template <class Function>
  void on_main_process(Function&& function) const {
    on_process(0, std::forward<Function>(function));
  }
  template <class Function>
  void on_local_main_process(Function&& function) const {
    if (is_local_main_process()) std::forward<Function>(function)();
  }
  template <class Function>
  void on_last_process(Function&& function) const {
    on_process(num_processes() - 1, std::forward<Function>(function));
  }
  template <class Function>
  void on_process(int index, Function&& function) const {
    if (process_index() == index) std::forward<Function>(function)();
  }

  /// Calls `function` on every rank: on the main process first, on the others when it has returned
  /// there, say to download once and then read. Every rank must call this. If it throws on the main
  /// process, every rank throws.
  template <class Function>
  void main_process_first(Function&& function) const {
    first(is_main_process(), std::forward<Function>(function));
  }
  /// The same, with the main process of each host first.
  template <class Function>
  void local_main_process_first(Function&& function) const {
    first(is_local_main_process(), std::forward<Function>(function));
  }

  /// See collectives.hpp for these; every rank must call the ones that communicate.
  template <NestedTensors T>
  [[nodiscard]] T gather(const T& value, const CallSite& where = CallSite::current()) const {
    return accel::gather(communicator_, value, where);
  }
  template <NestedTensors T>
  [[nodiscard]] T reduce(const T& value, Reduction reduction = Reduction::sum,
                         const CallSite& where = CallSite::current()) const {
    return accel::reduce(communicator_, value, reduction, where);
  }
  template <NestedTensors T>
  [[nodiscard]] T broadcast(const T& value, int from_process = 0,
                            const CallSite& where = CallSite::current()) const {
    return accel::broadcast(communicator_, value, from_process, where);
  }
  template <NestedTensors T>
  [[nodiscard]] T pad_across_processes(const T& value, int64_t dim = 0, double pad_index = 0,
                                       bool pad_first = false,
                                       const CallSite& where = CallSite::current()) const {
    return accel::pad_across_processes(communicator_, value, dim, pad_index, pad_first, where);
  }
  /// See object_collectives.hpp for these two; every rank must call them.
  template <JsonObject T>
  [[nodiscard]] std::vector<T> all_gather_object(
      const T& object, const CallSite& where = CallSite::current()) const {
    return accel::all_gather_object(communicator_, object, where);
  }
  template <JsonObject T>
  [[nodiscard]] T broadcast_object(const T& object, int from_process = 0,
                                   const CallSite& where = CallSite::current()) const {
    return accel::broadcast_object(communicator_, object, from_process, where);
  }
  template <class Items>
  [[nodiscard]] Items split_between_processes(const Items& items,
                                              bool apply_padding = false) const {
    return accel::split_between_processes(communicator_, items, apply_padding);
  }

 private:
  template <class Function>
  void first(bool mine, Function&& function) const {
    communicator_.together(
        [&] {
          if (mine) function();
        },
        ErrorCategory::collective, "what the main process was to do first has failed there");
    if (!mine) function();
  }

  Communicator communicator_;
  c10::Device device_;
};

}  // namespace accel
