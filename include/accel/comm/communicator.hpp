// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The connection between the ranks of a job: the store they meet in and the c10d process group they
// talk over, behind an interface of tensors and bytes that is right for every dtype and layout.
// Comes after ranks.hpp, which says who we are; collectives.hpp lifts its calls to nested values.
// This header stays free of c10d's (ten seconds of compile time).
#pragma once

#include <accel/comm/ranks.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace accel {

/// How values of several ranks become one.
enum class Reduction { sum, mean, max, min };

/// How ranks find each other and how long they wait. Every rank gives the same values.
struct CommunicatorOptions {
  std::chrono::milliseconds startup_timeout{60'000};      ///< for all ranks to arrive
  std::chrono::milliseconds collective_timeout{300'000};  ///< for one collective
  std::string interface;  ///< network interface to bind, such as "eth0"; empty: loopback on one
                          ///< host, else by host name
};

/// The ranks of a job, connected. Copies share the connection. A job of one process has no
/// connection, and every call returns at once with the right value.
///
/// Every member function that communicates is collective: *every rank must call this*, in the same
/// order. Errors are `Error(collective)`; after one, the connection is not to be used again.
class Communicator {
 public:
  /// One process, no connection.
  Communicator();

  /// Connects the ranks that `discover_ranks` found: opens the store (rank 0 serves it unless an
  /// agent does), calls the roll, opens a group for `device` (Gloo for the CPU, NCCL for CUDA).
  /// Every rank must call this. Throws Error(collective) that names the ranks that are missing,
  /// claimed twice, or of another world size.
  static Communicator connect(const Ranks& ranks, c10::DeviceType device,
                              const CommunicatorOptions& options = {});

  /// Connects over a store that the caller has: inside an MPI program, or ranks that are threads of
  /// one process (a c10d::HashStore). Several connections over one store are told apart by `name`.
  static Communicator over_store(c10::intrusive_ptr<c10d::Store> store, const Ranks& ranks,
                                 c10::DeviceType device, const CommunicatorOptions& options = {},
                                 const std::string& name = "accel");

  /// Uses a group that the caller opened.
  static Communicator over_group(c10::intrusive_ptr<c10d::ProcessGroup> group, const Ranks& ranks);

  [[nodiscard]] int rank() const noexcept { return ranks_.rank; }
  [[nodiscard]] int size() const noexcept { return ranks_.size; }
  [[nodiscard]] const Ranks& ranks() const noexcept { return ranks_; }

  /// The c10d group, for code that speaks to c10d itself; null for a job of one process.
  [[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> group() const;

  /// Returns when every rank has called it.
  void barrier() const;

  /// A new tensor of `tensor`'s shape: its values over the ranks, combined. Integers are exact;
  /// 16-bit floats are summed in fp32; bool is summed as "or", its max as "or", its min as "and".
  /// The mean of integers is refused: it has no integer value. Shapes and dtypes are compared
  /// first, so that a mismatch is an error on every rank.
  [[nodiscard]] at::Tensor all_reduce(const at::Tensor& tensor, Reduction reduction) const;

  /// Every rank's tensor, concatenated along dim 0 in rank order; a 0-dim tensor counts as one row.
  /// Shapes must be equal.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor) const;

  /// Rank `root`'s tensor on every rank. The others' tensor gives shape and dtype.
  [[nodiscard]] at::Tensor broadcast(const at::Tensor& tensor, int root) const;

  /// The same, in place on each tensor, in few messages. Shapes and dtypes are not compared.
  void broadcast_coalesced_(const std::vector<at::Tensor>& tensors, int root) const;

  /// Every rank's bytes, in rank order; lengths may differ.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

  /// The sum of every rank's number, exact.
  [[nodiscard]] int64_t all_sum(int64_t mine) const;

  /// True if every rank says true.
  [[nodiscard]] bool all_agree(bool mine) const;

  /// Leaves word in the store of why this rank is about to stop, for what only it has found. A
  /// collective of another rank that fails from then on gives the reason. Local, and never throws.
  void leave_word(const std::string& reason) const noexcept;

  /// Throws Error(collective) for what c10d threw in the operation `what`: with the word that
  /// another rank left, else with the cause. Local.
  [[noreturn]] void fail_operation(const char* what, const std::exception& cause) const;

 private:
  struct Connection;
  Ranks ranks_;
  std::shared_ptr<Connection> connection_;
};

}  // namespace accel
