// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The store that ranks meet in, where they are threads of one process, and a rank that ends when all
// have met.
#include "support/thread_ranks.hpp"

#include <accel/comm/communicator.hpp>

#include <catch2/catch_all.hpp>

#include <chrono>
#include <future>
#include <thread>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

TEST_CASE("a rank that waits for the store does not keep rank 0 of its process from serving it") {
  // The socket is open from the start, as a launcher's: the port is nobody else's.
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listening, 8) == 0);
  REQUIRE(::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const auto connect = [&](int rank) {
    accel::Ranks ranks{.rank = rank, .size = 2, .local_rank = rank, .local_size = 2};
    ranks.master_addr = "127.0.0.1";
    ranks.master_port = ntohs(address.sin_port);
    if (rank == 0) ranks.store_fd = listening;
    accel::CommunicatorOptions options;
    options.startup_timeout = std::chrono::seconds(20);
    return accel::Communicator::connect(ranks, c10::DeviceType::CPU, options).all_sum(1);
  };
  auto waiting = std::async(std::launch::async, connect, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  auto serving = std::async(std::launch::async, connect, 0);
  CHECK(waiting.get() == 2);
  CHECK(serving.get() == 2);
  ::close(listening);
}

TEST_CASE(
    "B29 a peer that ends between start-up and the first collective is told within the timeout") {
  accel::CommunicatorOptions options;
  options.collective_timeout = std::chrono::seconds(2);
  const auto start = std::chrono::steady_clock::now();
  const auto errors = accel::test::errors_of_ranks(
      3,
      [](const accel::PartialState& state) {
        if (state.process_index() != 1) state.wait_for_everyone();
      },
      options);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(errors[1].empty());
  for (const size_t survivor : {0, 2})
    CHECK_THAT(errors[survivor],
               Catch::Matchers::ContainsSubstring("barrier failed. A rank has ended"));
}
