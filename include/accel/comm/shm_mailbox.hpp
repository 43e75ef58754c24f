// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages from one rank of a host to another, through shared memory: for each pair a short row of
// slots that the sender fills and the receiver empties, and for each rank a bell that the others ring
// when there is something to do. A thread of its own moves all messages of a rank at once, so that
// two ranks may send to each other at the same time. Beside shm_ring.hpp; nothing of LibTorch.
#pragma once

#include <accel/comm/shm_peers.hpp>
#include <accel/comm/shm_wait.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace accel::detail {

class ShmMailbox {
 public:
  static constexpr int any_rank = -1;

  [[nodiscard]] static std::size_t bytes_needed(int size);

  /// `memory` is zeros at first, and the same for all ranks.
  ShmMailbox(std::byte* memory, ShmPeers& peers);
  /// Messages that are under way fail.
  ~ShmMailbox();
  ShmMailbox(const ShmMailbox&) = delete;
  ShmMailbox& operator=(const ShmMailbox&) = delete;

  /// Called once, on the mailbox's thread: with what went wrong or null, and whom the message was
  /// from or to.
  using Done = std::function<void(std::exception_ptr, int peer)>;

  /// `data` must stay until `done`, which says that it may be used again, not that it has arrived.
  /// Messages to one rank arrive in order.
  void send(int to, std::uint64_t tag, const std::byte* data, std::size_t bytes,
            std::chrono::milliseconds timeout, Done done);

  /// Takes the next message with that tag, from `from` or from any rank. One of another length fails
  /// with Error(collective).
  void receive(int from, std::uint64_t tag, std::byte* data, std::size_t bytes,
               std::chrono::milliseconds timeout, Done done);

 private:
  struct Lane;  ///< from one rank to another
  struct Request {
    int peer;
    std::uint64_t tag;
    std::byte* data;
    std::size_t bytes;
    std::chrono::steady_clock::time_point deadline;
    Done done;
    std::size_t moved = 0;  ///< bytes sent so far
    bool is_taken = false;  ///< a message is being read into it
  };
  /// A message that is being read: into a request, or aside while nobody has asked for it.
  struct Incoming {
    std::uint64_t tag = 0;
    std::size_t bytes = 0;
    std::size_t moved = 0;
    std::list<Request>::iterator request{};
    bool is_aside = false;
    std::vector<std::byte> aside{};
    bool is_open = false;
  };

  [[nodiscard]] Lane& lane(int from, int to) const;
  [[nodiscard]] WaitWord& bell(int rank) const;

  void submit(Request request, bool is_send);
  void run();
  bool accept_requests();
  bool move_out(int to);
  bool move_in(int from);
  bool open_next(int from);
  void close(int from);
  void take_aside(std::list<Request>::iterator request);
  [[nodiscard]] static bool is_for(const Request& request, int from, std::uint64_t tag);
  void settle(Request& request, int peer, std::size_t bytes);
  void check();
  void fail_all(const std::exception_ptr& why);

  std::byte* memory_;
  ShmPeers& peers_;
  // The thread's own.
  std::vector<std::deque<Request>> outgoing_;  ///< to each rank
  std::list<Request> wanted_;                  ///< in the order in which they were asked for
  std::vector<Incoming> incoming_;             ///< from each rank
  std::vector<std::deque<Incoming>> kept_;     ///< from each rank: whole messages, unasked for
  // Shared with those that ask.
  std::mutex mutex_;
  std::vector<std::pair<Request, bool>> requests_;
  bool stopping_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

}  // namespace accel::detail
