// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages through shared memory: both ways at once, out of order, longer than the slots, to somebody
// who never asks.
#include "support/ring_ranks.hpp"

#include <accel/comm/shm_mailbox.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <future>
#include <random>

using accel::detail::RingOptions;
using accel::detail::ShmMailbox;
using accel::detail::ShmPeers;
using Catch::Matchers::ContainsSubstring;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

namespace {

/// What each rank's `body(mailbox, peers)` throws, as text.
template <class Body>
std::vector<std::string> errors_of_mailboxes(int size, Body&& body) {
  const auto peer_bytes = (ShmPeers::bytes_needed(size) + 4095) / 4096 * 4096;
  const auto bytes = peer_bytes + ShmMailbox::bytes_needed(size);
  const std::unique_ptr<void, decltype(&std::free)> memory(
      std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), &std::free);
  std::memset(memory.get(), 0, bytes);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        auto* base = static_cast<std::byte*>(memory.get());
        ShmPeers peers(base, rank, size);
        try {
          ShmMailbox mailbox(base + peer_bytes, peers);
          body(mailbox, peers);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
        peers.leave();
      });
  }
  return errors;
}

/// A message on its way: throws what went wrong, or gives the rank it was from or to.
class Message {
 public:
  [[nodiscard]] ShmMailbox::Done done() {
    return [promise = promise_](std::exception_ptr failure, int peer) {
      if (failure)
        promise->set_exception(failure);
      else
        promise->set_value(peer);
    };
  }
  int wait() { return result_.get(); }

 private:
  std::shared_ptr<std::promise<int>> promise_ = std::make_shared<std::promise<int>>();
  std::future<int> result_ = promise_->get_future();
};

Bytes pattern(std::size_t bytes, int from, int number) {
  Bytes all(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    all[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(from * 31 + number));
  return all;
}

constexpr auto patient = 60'000ms;

}  // namespace

TEST_CASE("every rank sends to every other at once, in random sizes, and asks in another order") {
  constexpr int size = 3, messages = 12;
  std::atomic<int> wrong{0};
  const auto errors = errors_of_mailboxes(size, [&](ShmMailbox& mailbox, ShmPeers& peers) {
    const int rank = peers.rank();
    const auto bytes_of = [](int from, int to, int number) {
      std::mt19937 random(static_cast<unsigned>(from * 100 + to * 10 + number));
      return random() % 4 == 0 ? random() % 600'000 : random() % 2000;
    };
    std::vector<Bytes> data;
    data.reserve(static_cast<std::size_t>(2 * size * messages));
    std::vector<Message> sent, got;
    std::vector<std::pair<std::size_t, Bytes>> right;
    for (int peer = 0; peer < size; ++peer)
      for (int number = 0; number < messages; ++number) {
        data.push_back(pattern(bytes_of(rank, peer, number), rank, number));
        sent.emplace_back();
        mailbox.send(peer, static_cast<std::uint64_t>(number), data.back().data(),
                     data.back().size(), patient, sent.back().done());
      }
    for (int peer = 0; peer < size; ++peer)
      for (int number = messages - 1; number >= 0; --number) {  // the last first
        data.emplace_back(bytes_of(peer, rank, number));
        right.emplace_back(data.size() - 1, pattern(data.back().size(), peer, number));
        got.emplace_back();
        mailbox.receive(peer, static_cast<std::uint64_t>(number), data.back().data(),
                        data.back().size(), patient, got.back().done());
      }
    for (auto& message : got) message.wait();
    for (auto& message : sent) message.wait();
    for (const auto& [index, bytes] : right) wrong += data[index] != bytes;
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(wrong == 0);
}

TEST_CASE("a message from any rank says whom it is from") {
  std::atomic<int> sum{0};
  const auto errors = errors_of_mailboxes(3, [&](ShmMailbox& mailbox, ShmPeers& peers) {
    Bytes byte(1);
    if (peers.rank() == 0) {
      for (int i = 0; i < 2; ++i) {
        Message message;
        mailbox.receive(ShmMailbox::any_rank, 4, byte.data(), 1, patient, message.done());
        sum += 10 * message.wait() + std::to_integer<int>(byte[0]);
      }
    } else {
      byte[0] = static_cast<std::byte>(peers.rank());
      Message message;
      mailbox.send(0, 4, byte.data(), 1, patient, message.done());
      message.wait();
    }
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(sum == 33);
}

TEST_CASE("a message whose other half never comes ends at its deadline, and a mailbox with its "
          "messages") {
  const auto errors = errors_of_mailboxes(2, [](ShmMailbox& mailbox, ShmPeers& peers) {
    if (peers.rank() == 1) return std::this_thread::sleep_for(800ms);
    Bytes data(1'000'000);
    Message message;
    mailbox.send(1, 3, data.data(), data.size(), 200ms, message.done());
    message.wait();
  });
  CHECK_THAT(errors[0],
             ContainsSubstring("a send to rank 1 of 1000000 bytes with tag 3 was not done"));

  std::string closed;
  (void)errors_of_mailboxes(1, [&](ShmMailbox&, ShmPeers& peers) {
    const auto memory = std::make_unique<std::max_align_t[]>(ShmMailbox::bytes_needed(1) / 8);
    const auto aligned = (reinterpret_cast<std::uintptr_t>(memory.get()) + 4095) / 4096 * 4096;
    Message message;
    Bytes data(1);
    {
      ShmMailbox other(reinterpret_cast<std::byte*>(aligned), peers);
      other.receive(0, 1, data.data(), 1, patient, message.done());
    }
    try {
      message.wait();
    } catch (const std::exception& error) {
      closed = error.what();
    }
  });
  CHECK_THAT(closed, ContainsSubstring("the group was closed before its messages had gone"));
}
