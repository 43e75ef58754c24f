// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The connection between the ranks of a job: the store they meet in and the c10d process group they
// talk over, behind an interface of tensors and bytes that is right for every dtype and layout.
// Comes after ranks.hpp, which says who we are; collectives.hpp lifts its calls to nested values.
// This header stays free of c10d's (ten seconds of compile time).
#pragma once

#include <accel/comm/ranks.hpp>
#include <accel/detail/error.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace accel {

/// How values of several ranks become one.
enum class Reduction { sum, mean, max, min };

/// What CPU tensors travel over.
enum class Transport {
  automatic,      ///< ACCEL_TRANSPORT says; else shared memory where all ranks can, else Gloo
  shared_memory,  ///< memory that the ranks of one host share
  gloo,           ///< TCP
};

/// How ranks find each other and how long they wait. Every rank gives the same values.
struct CommunicatorOptions {
  std::chrono::milliseconds startup_timeout{60'000};      ///< for all ranks to arrive
  std::chrono::milliseconds collective_timeout{300'000};  ///< for one collective
  std::string interface;  ///< network interface to bind, such as "eth0"; empty: loopback on one
                          ///< host, else by host name
  std::optional<bool> debug{};  ///< before each collective, compare what ranks call and from which
                                ///< line; unset: ACCEL_DEBUG, ACCELERATE_DEBUG_MODE, else off
  Transport transport = Transport::automatic;
};

/// Where in the user's program a collective was called, for the debug mode.
using CallSite = std::source_location;

/// The ranks of a job, connected. Copies share the connection. A job of one process has no
/// connection, and every call returns at once with the right value.
///
/// Every member function that communicates is collective: *every rank must call this*, in the same
/// order. Errors are `Error(collective)`; after one, the connection is not to be used again. Ranks
/// that call different things are told so, in debug mode with the lines of their calls. Not so where
/// one of them is in a backward pass: there debug mode alone compares.
class Communicator {
 public:
  /// One process, no connection.
  Communicator();

  /// Connects the ranks that `discover_ranks` found: opens the store (rank 0 serves it unless an
  /// agent does), calls the roll, opens a group for `device` (for the CPU what options.transport
  /// says, NCCL for CUDA).
  /// Every rank must call this. Throws Error(collective) that names the ranks that are missing,
  /// claimed twice, or of another world size.
  static Communicator connect(const Ranks& ranks, c10::DeviceType device,
                              const CommunicatorOptions& options = {});

  /// Connects over a store that the caller has: inside an MPI program, or ranks that are threads of
  /// one process (a c10d::HashStore). Several connections over one store are told apart by `name`.
  static Communicator over_store(const c10::intrusive_ptr<c10d::Store>& store, const Ranks& ranks,
                                 c10::DeviceType device, const CommunicatorOptions& options = {},
                                 const std::string& name = "accel");

  /// Uses a group that the caller opened. It needs a backend for CPU tensors, in which the ranks tell
  /// each other what they call: c10d's "cpu:gloo,cuda:nccl", say. Throws Error(config) for one without.
  static Communicator over_group(c10::intrusive_ptr<c10d::ProcessGroup> group, const Ranks& ranks,
                                 const CommunicatorOptions& options = {});

  /// A connection of its own between the same ranks: what fails on one leaves the other usable, as
  /// with MPI_Comm_dup. Every rank must call this. Throws Error(usage) for one made by over_group,
  /// whose store is the caller's.
  [[nodiscard]] Communicator duplicate() const;

  /// A connection of the ranks that give the same color (0 or above), in the order of their ranks, as
  /// with MPI_Comm_split. Every rank must call this. Throws Error(usage) as `duplicate` does.
  [[nodiscard]] Communicator split(int color) const;

  [[nodiscard]] int rank() const noexcept { return ranks_.rank; }
  [[nodiscard]] int size() const noexcept { return ranks_.size; }
  [[nodiscard]] const Ranks& ranks() const noexcept { return ranks_; }

  /// The c10d group, for code that speaks to c10d itself; null for a job of one process.
  [[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> group() const;

  /// Returns when every rank has called it.
  void barrier(const CallSite& where = CallSite::current()) const;

  // `where` and `part` of the next four: the user's line, and which tensor of a nested value it is
  // (index * 2^32 + count), for what ranks are told that call different things. With 0, a value without
  // any, the rank takes part all the same, and is given back the tensor that it passed, whatever it is.

  /// A new tensor of `tensor`'s shape: its values over the ranks, combined. Integers are exact. Sums
  /// and means of 16-bit and 8-bit floats are fp32, which a metric needs; max and min keep the dtype,
  /// and are NaN where any rank's value is. bool is summed as "or", its max as "or", its min as "and".
  /// The mean of integers is refused: it has no integer value. Shapes and dtypes are compared
  /// first, so that a mismatch is an error on every rank.
  [[nodiscard]] at::Tensor all_reduce(const at::Tensor& tensor, Reduction reduction,
                                      const CallSite& where = CallSite::current(),
                                      int64_t part = 1) const;

  /// Every rank's tensor, concatenated along dim 0 in rank order; a 0-dim tensor counts as one row.
  /// Shapes must be equal but for dim 0.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor,
                                      const CallSite& where = CallSite::current(),
                                      int64_t part = 1) const;

  /// Rank `root`'s tensor on every rank. The others' tensor gives shape and dtype.
  [[nodiscard]] at::Tensor broadcast(const at::Tensor& tensor, int root,
                                     const CallSite& where = CallSite::current(),
                                     int64_t part = 1) const;

  /// Every rank's length of its tensor in `dim` (-1: the last), 0 where it lacks that dim. Dtypes must
  /// be equal, shapes need not be.
  [[nodiscard]] std::vector<int64_t> all_lengths(const at::Tensor& tensor, int64_t dim,
                                                 const CallSite& where = CallSite::current(),
                                                 int64_t part = 1) const;

  /// `broadcast`, in place on each tensor, in few messages. Shapes and dtypes are not compared.
  void broadcast_coalesced_(const std::vector<at::Tensor>& tensors, int root) const;

  /// Every rank's bytes, in rank order; lengths may differ.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(
      const std::string& bytes, const CallSite& where = CallSite::current()) const;

  /// The sum of every rank's number, exact.
  [[nodiscard]] int64_t all_sum(int64_t mine, const CallSite& where = CallSite::current()) const;

  /// True if every rank says true.
  [[nodiscard]] bool all_agree(bool mine, const CallSite& where = CallSite::current()) const;

  /// Runs `step` here, and returns once it has ended well on every rank. Where it threw on one, all
  /// throw: that rank what it threw, the others Error(category) with the sentence `otherwise`. Every
  /// rank must call this; `step` may be something that only some of them do.
  template <std::invocable Step>
  void together(Step&& step, ErrorCategory category, std::string_view otherwise) const {
    std::exception_ptr failure;
    try {
      std::forward<Step>(step)();
    } catch (...) {
      failure = std::current_exception();
    }
    const bool went_well = all_agree(!failure);
    if (failure) std::rethrow_exception(failure);
    if (!went_well)
      detail::fail(category, "accel: rank {}: {}; the rank that could not says why", rank(),
                   otherwise);
  }

  /// In debug mode: throws Error(collective) on every rank, with what each is about to do and where,
  /// unless all are about to do the same. Members call it themselves. Every rank must call this.
  void compare_calls(std::string_view call, const CallSite& where) const;

  /// Whether debug mode is on, on every rank.
  [[nodiscard]] bool debugging() const noexcept;

  /// Leaves word in the store of why this rank is about to stop, for what only it has found. A
  /// collective of another rank that fails from then on gives the reason. Local, and never throws.
  void leave_word(const std::string& reason) const noexcept;

  /// Throws Error(collective) for what c10d threw in the operation `what`: with the word that
  /// another rank left, else with the cause. Local.
  [[noreturn]] void fail_operation(const char* what, const std::exception& cause) const;

 private:
  struct Connection;
  void require_store() const;
  Ranks ranks_;
  std::shared_ptr<Connection> connection_;
};

}  // namespace accel
