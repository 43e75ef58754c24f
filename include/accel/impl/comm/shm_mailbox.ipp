// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_mailbox.hpp>

#include <accel/detail/error.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace accel::detail {
namespace {

constexpr std::uint32_t lane_slots = 4;
constexpr std::size_t slot_bytes = 64 << 10;

}  // namespace

struct ShmMailbox::Lane {
  std::atomic<std::uint32_t> written;            ///< slots that the sender has filled
  alignas(128) std::atomic<std::uint32_t> read;  ///< slots that the receiver has emptied
  struct alignas(128) Slot {
    std::uint64_t tag, message_bytes, piece_bytes;
    alignas(64) std::array<std::byte, slot_bytes> data;
  };
  alignas(4096) std::array<Slot, lane_slots> slots;
};

std::size_t ShmMailbox::bytes_needed(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return sizeof(WaitWord) * 32 * ((ranks + 31) / 32) + sizeof(Lane) * ranks * ranks;
}

ShmMailbox::ShmMailbox(std::byte* memory, ShmPeers& peers)
    : memory_(memory),
      peers_(peers),
      outgoing_(static_cast<std::size_t>(peers.size())),
      incoming_(static_cast<std::size_t>(peers.size())),
      kept_(static_cast<std::size_t>(peers.size())) {}

ShmMailbox::~ShmMailbox() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  bell(peers_.rank()).bump();
  thread_.join();
}

WaitWord& ShmMailbox::bell(int rank) const { return reinterpret_cast<WaitWord*>(memory_)[rank]; }
ShmMailbox::Lane& ShmMailbox::lane(int from, int to) const {
  const auto ranks = static_cast<std::size_t>(peers_.size());
  auto* lanes = memory_ + sizeof(WaitWord) * 32 * ((ranks + 31) / 32);
  return reinterpret_cast<Lane*>(
      lanes)[static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to)];
}

void ShmMailbox::send(int to, std::uint64_t tag, const std::byte* data, std::size_t bytes,
                      std::chrono::milliseconds timeout, Done done) {
  submit({to, tag, const_cast<std::byte*>(data), bytes, std::chrono::steady_clock::now() + timeout,
          std::move(done)},
         true);
}

void ShmMailbox::receive(int from, std::uint64_t tag, std::byte* data, std::size_t bytes,
                         std::chrono::milliseconds timeout, Done done) {
  submit({from, tag, data, bytes, std::chrono::steady_clock::now() + timeout, std::move(done)},
         false);
}

void ShmMailbox::submit(Request request, bool is_send) {
  {
    std::unique_lock lock(mutex_);
    if (const auto broken = broken_) {
      lock.unlock();
      return request.done(broken, request.peer);
    }
    requests_.emplace_back(std::move(request), is_send);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  bell(peers_.rank()).bump();
}

void ShmMailbox::run() {
  auto& my_bell = bell(peers_.rank());
  const Patience awake{}, asleep{.spins = 0, .awake = {}};
  try {
    for (;;) {
      const auto seen = my_bell.value.load(std::memory_order_acquire);
      if (!accept_requests()) break;
      bool moved = false, busy = !wanted_.empty();
      for (int peer = 0; peer < peers_.size(); ++peer) {
        moved = move_out(peer) || moved;
        moved = move_in(peer) || moved;
        busy = busy || !outgoing_[static_cast<std::size_t>(peer)].empty();
      }
      if (moved) continue;
      wait_until(my_bell, seen + 1, busy ? awake : asleep, [&] {
        try {
          check();
        } catch (const Error&) {
          // A rank that has sent its last messages meanwhile may leave.
          if (!my_bell.reached(seen + 1)) throw;
        }
      });
    }
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: the group was closed before its messages had gone; wait for each",
         peers_.rank(), peers_.size());
  } catch (const std::exception& error) {
    const bool closing = [&] {
      const std::scoped_lock lock(mutex_);
      return stopping_;
    }();
    if (!closing) peers_.stop(error.what());
    fail_all(std::current_exception());
  }
}

/// False when the mailbox is to end.
bool ShmMailbox::accept_requests() {
  std::vector<std::pair<Request, bool>> fresh;
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return false;
    fresh.swap(requests_);
  }
  for (auto& [request, is_send] : fresh) {
    if (is_send) {
      outgoing_[static_cast<std::size_t>(request.peer)].push_back(std::move(request));
    } else {
      wanted_.push_back(std::move(request));
      take_aside(std::prev(wanted_.end()));
    }
  }
  return true;
}

/// Fills free slots with what is to go to `to`.
bool ShmMailbox::move_out(int to) {
  auto& queue = outgoing_[static_cast<std::size_t>(to)];
  auto& way = lane(peers_.rank(), to);
  bool moved = false;
  while (!queue.empty()) {
    auto written = way.written.load(std::memory_order_relaxed);
    if (written - way.read.load(std::memory_order_acquire) == lane_slots) break;
    auto& request = queue.front();
    auto& slot = way.slots[written % lane_slots];
    slot.tag = request.tag;
    slot.message_bytes = request.bytes;
    slot.piece_bytes = std::min(slot_bytes, request.bytes - request.moved);
    if (slot.piece_bytes > 0)
      std::memcpy(slot.data.data(), request.data + request.moved, slot.piece_bytes);
    request.moved += slot.piece_bytes;
    way.written.store(written + 1, std::memory_order_release);
    bell(to).bump();
    moved = true;
    if (request.moved < request.bytes) continue;
    const auto sent = std::move(request);
    queue.pop_front();
    sent.done(nullptr, to);
  }
  return moved;
}

/// Whether a request waits for a message with that tag from that rank.
bool ShmMailbox::is_for(const Request& request, int from, std::uint64_t tag) {
  return (request.peer == from || request.peer == any_rank) && request.tag == tag &&
         !request.is_taken;
}

/// Finds out where the next message from `from` goes. False while there is none, or nobody waits for
/// anything from there.
bool ShmMailbox::open_next(int from) {
  auto& way = lane(from, peers_.rank());
  const auto read = way.read.load(std::memory_order_relaxed);
  if (way.written.load(std::memory_order_acquire) == read) return false;
  const auto& slot = way.slots[read % lane_slots];
  const auto request = std::ranges::find_if(
      wanted_, [&](const Request& each) { return is_for(each, from, slot.tag); });
  Incoming next{.tag = slot.tag, .bytes = slot.message_bytes, .is_open = true};
  if (request != wanted_.end()) {
    next.request = request;
    request->is_taken = true;
  } else {
    // A message with another tag may stand before the one that is waited for.
    if (std::ranges::none_of(wanted_, [&](const Request& each) {
          return each.peer == from || each.peer == any_rank;
        }))
      return false;
    next.is_aside = true;
    next.aside.resize(next.bytes);
  }
  incoming_[static_cast<std::size_t>(from)] = std::move(next);
  return true;
}

bool ShmMailbox::move_in(int from) {
  auto& current = incoming_[static_cast<std::size_t>(from)];
  auto& way = lane(from, peers_.rank());
  bool moved = false;
  for (;;) {
    if (!current.is_open && !open_next(from)) return moved;
    const auto read = way.read.load(std::memory_order_relaxed);
    if (way.written.load(std::memory_order_acquire) == read) return moved;
    const auto& slot = way.slots[read % lane_slots];
    auto* to = current.is_aside                          ? current.aside.data()
               : current.request->bytes == current.bytes ? current.request->data
                                                         : nullptr;  // fails below
    if (to && slot.piece_bytes > 0)
      std::memcpy(to + current.moved, slot.data.data(), slot.piece_bytes);
    current.moved += slot.piece_bytes;
    way.read.store(read + 1, std::memory_order_release);
    bell(from).bump();
    moved = true;
    if (current.moved == current.bytes) close(from);
  }
}

void ShmMailbox::close(int from) {
  auto message = std::exchange(incoming_[static_cast<std::size_t>(from)], {});
  if (message.is_aside) {
    const auto tag = message.tag;
    kept_[static_cast<std::size_t>(from)].push_back(std::move(message));
    // Somebody may have asked for it meanwhile.
    const auto request =
        std::ranges::find_if(wanted_, [&](const Request& each) { return is_for(each, from, tag); });
    if (request != wanted_.end()) take_aside(request);
    return;
  }
  auto request = std::move(*message.request);
  wanted_.erase(message.request);
  settle(request, from, message.bytes);
}

/// Gives a new request a message that came before it was asked for.
void ShmMailbox::take_aside(std::list<Request>::iterator request) {
  for (int from = 0; from < peers_.size(); ++from) {
    if (request->peer != any_rank && request->peer != from) continue;
    auto& kept = kept_[static_cast<std::size_t>(from)];
    const auto found = std::ranges::find(kept, request->tag, &Incoming::tag);
    if (found == kept.end()) continue;
    auto wanted = std::move(*request);
    wanted_.erase(request);
    if (wanted.bytes == found->bytes && wanted.bytes > 0)
      std::memcpy(wanted.data, found->aside.data(), wanted.bytes);
    const auto bytes = found->bytes;
    kept.erase(found);
    return settle(wanted, from, bytes);
  }
}

void ShmMailbox::settle(Request& request, int peer, std::size_t bytes) {
  if (bytes == request.bytes) return request.done(nullptr, peer);
  request.done(
      std::make_exception_ptr(Error(
          ErrorCategory::collective,
          fmt::format(
              "accel: rank {} of {}: rank {} sent {} bytes with tag {}, and {} were expected; "
              "give send and recv tensors of one dtype and size",
              peers_.rank(), peers_.size(), peer, bytes, request.tag, request.bytes))),
      peer);
}

void ShmMailbox::check() {
  const auto now = std::chrono::steady_clock::now();
  const auto check_one = [&](const Request& request, const char* what) {
    if (request.peer != any_rank) peers_.require(request.peer);
    if (now < request.deadline) return;
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: {} {} of {} bytes with tag {} was not done in time; does that rank "
         "call the other half? collective_timeout is how long to wait",
         peers_.rank(), peers_.size(), what,
         request.peer == any_rank ? "any rank" : fmt::format("rank {}", request.peer),
         request.bytes, request.tag);
  };
  for (const auto& queue : outgoing_)
    for (const auto& request : queue) check_one(request, "a send to");
  for (const auto& request : wanted_) check_one(request, "a receive from");
}

void ShmMailbox::fail_all(const std::exception_ptr& why) {
  std::vector<std::pair<Request, bool>> rest;
  {
    const std::scoped_lock lock(mutex_);
    broken_ = why;
    rest.swap(requests_);
  }
  for (auto& queue : outgoing_)
    for (auto& request : queue) request.done(why, request.peer);
  for (auto& request : wanted_) request.done(why, request.peer);
  for (auto& [request, is_send] : rest) request.done(why, request.peer);
}

}  // namespace accel::detail
