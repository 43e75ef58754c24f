// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives of bytes between the ranks of one host, through memory that they share. Every rank has
// a ring of slots that it alone writes: it puts a piece of its data there and says so, the others
// read or reduce it and say that they are done, and while they do it fills the next slot. So the
// memory is bounded, the pieces stay in the cache, and nobody writes where another one might.
//
// Comes after shm_wait.hpp and shm_kernels.hpp; shm_backend.hpp makes a c10d backend of it. Nothing
// of LibTorch: ranks may be threads over any memory, as a test under ThreadSanitizer has it.
#pragma once

#include <accel/comm/shm_kernels.hpp>
#include <accel/comm/shm_peers.hpp>
#include <accel/comm/shm_wait.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accel::detail {

/// What a rank is about to do. At the first step of each collective the ranks compare these.
struct Collective {
  enum class Kind : std::uint8_t {
    barrier,
    broadcast,
    all_reduce,
    reduce,
    all_gather,
    gather,
    scatter,
    reduce_scatter,
    all_to_all
  };
  Kind kind = Kind::barrier;
  Element element = Element::bytes;
  Combine combine = Combine::sum;
  std::uint32_t root = 0;
  std::uint64_t count = 0;  ///< elements of what each rank gives

  bool operator==(const Collective&) const = default;
  [[nodiscard]] std::string text() const;
};

/// The size of the staging memory. Every rank gives the same values. The defaults were measured:
/// pieces of 32 KiB to 256 KiB are alike up to 8 MiB, and above that larger ones win, until they
/// leave the second cache.
struct RingOptions {
  std::size_t slot_bytes = 512 << 10;  ///< of one slot; a multiple of 4 KiB
  std::uint32_t slots = 6;             ///< of a rank; at least 3 (see reduce_in_sections)
  std::size_t arena_bytes = 0;         ///< a rank's own tensors in shared memory; pages are free
                                       ///< until they are touched
  Patience patience{};
};

/// The collectives of one group. One thread at a time calls them, in the same order on every rank.
/// They throw Error(collective) where ranks differ in what they call, or one is gone, or late; then
/// the group is of no more use. `timeout` is for one call.
class ShmRing {
 public:
  [[nodiscard]] static std::size_t bytes_needed(int size, const RingOptions& options);

  /// `memory` is zeros at first, and the same for all ranks. Every rank must construct.
  ShmRing(std::byte* memory, int rank, int size, const RingOptions& options = {});

  using Pointers = std::span<std::byte* const>;
  using ConstPointers = std::span<const std::byte* const>;
  using Lengths = std::span<const std::size_t>;
  using Timeout = std::chrono::milliseconds;

  void barrier(Timeout timeout);
  void broadcast(std::byte* data, std::size_t count, Element element, int root, Timeout timeout);

  /// In place. Where the data of every rank lies in its arena, larger tensors are reduced there,
  /// without a copy.
  void all_reduce(std::byte* data, std::size_t count, Element element, Combine combine,
                  Timeout timeout);
  /// In place on `root`; the others' data stays as it is.
  void reduce(std::byte* data, std::size_t count, Element element, Combine combine, int root,
              Timeout timeout);

  /// outputs[r] gets rank r's input. `input` may be outputs[rank].
  void all_gather(Pointers outputs, const std::byte* input, std::size_t count, Element element,
                  Timeout timeout);
  /// The same on `root` alone; the others' `outputs` are not looked at.
  void gather(Pointers outputs, const std::byte* input, std::size_t count, Element element,
              int root, Timeout timeout);
  /// The output gets root's inputs[rank]; the others' `inputs` are not looked at.
  void scatter(std::byte* output, ConstPointers inputs, std::size_t count, Element element,
               int root, Timeout timeout);
  /// The output gets the reduction of every rank's inputs[rank]. It may be the rank's own.
  void reduce_scatter(std::byte* output, ConstPointers inputs, std::size_t count, Element element,
                      Combine combine, Timeout timeout);
  /// outputs[r] gets rank r's inputs[rank]. Lengths are in bytes; what a rank sends to another must
  /// be as long as what that one expects. No output overlaps an input.
  void all_to_all(Pointers outputs, Lengths output_bytes, ConstPointers inputs, Lengths input_bytes,
                  Timeout timeout);

  /// This rank's memory for tensors that others may read and write in collectives.
  [[nodiscard]] std::span<std::byte> arena() const;

  [[nodiscard]] int rank() const noexcept { return peers_.rank(); }
  [[nodiscard]] int size() const noexcept { return peers_.size(); }
  [[nodiscard]] ShmPeers& peers() noexcept { return peers_; }
  /// Collectives begun so far.
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }

 private:
  struct Control;
  struct Announcement;

  [[nodiscard]] Control& control(int rank) const;
  /// What a rank sends to each in all_to_all, then what it expects of each; two of them, as of its
  /// announcements.
  [[nodiscard]] std::uint64_t* lengths_of(int rank) const;
  [[nodiscard]] std::byte* slot(int rank, std::uint32_t step) const;
  [[nodiscard]] std::size_t share_bytes() const;  ///< of a slot, for each rank

  void announce(const Collective& mine, Timeout timeout, std::uint64_t place = 0);
  void compare(const Collective& mine);
  [[nodiscard]] std::byte* arena_of(int rank) const;
  [[nodiscard]] std::uint64_t place_in_arena(const std::byte* data, std::size_t bytes) const;
  void await(int peer, WaitWord Control::* word, std::uint32_t target);
  void await_free(std::uint32_t step);
  void finish(std::uint32_t steps);
  [[noreturn]] void stop_and_fail(const std::string& why);
  [[noreturn]] void fail_as_different(const Collective& mine);
  [[nodiscard]] std::string place_of(int rank) const;
  template <class Do>
  void for_peers(Do&& act) const;

  /// The loop of every collective but all_reduce: `fill(step, slot)` puts this rank's piece there;
  /// `take(step)` reads the pieces of `sources` (all ranks, or one).
  template <class Fill, class Take>
  void run_steps(const Collective& mine, std::uint32_t steps, int source, Timeout timeout,
                 Fill&& fill, Take&& take);
  void reduce_flat(std::byte* data, const Collective& mine, bool keep, Timeout timeout);
  void reduce_in_sections(std::byte* data, const Collective& mine);
  void reduce_in_arenas(const Collective& mine);
  void meet();

  RingOptions options_;
  ShmPeers peers_;
  // Where things lie in the shared memory.
  Control* controls_;
  std::uint64_t* lengths_;
  std::byte* slots_;
  std::byte* arenas_;
  std::uint32_t step_ = 0;  ///< steps of all collectives before this one
  std::uint64_t sequence_ = 0;
  // Of the collective under way, for what is said where it fails.
  Collective current_{};
  Timeout timeout_{};
  std::chrono::steady_clock::time_point deadline_{};
};

}  // namespace accel::detail
