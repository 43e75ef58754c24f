// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// B26: the port is bound once, by the launcher, and rank 0 inherits the socket. It is never probed
// and released.
#include "launched_job.hpp"

#include <accel/detail/error.hpp>
#include <accel/launch/listening_socket.hpp>

#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

using accel::detail::ListeningSocket;
using Catch::Matchers::ContainsSubstring;
using namespace accel_test;

namespace {

sockaddr_in address_of(std::uint32_t host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(host);
  return address;
}

/// Another program that listens on a port of its own.
class Occupant {
 public:
  explicit Occupant(std::uint32_t host) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto address = address_of(host, 0);
    socklen_t length = sizeof address;
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(fd_, 1) == 0);
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port_ = ntohs(address.sin_port);
  }
  Occupant(const Occupant&) = delete;
  Occupant& operator=(const Occupant&) = delete;
  ~Occupant() { ::close(fd_); }
  [[nodiscard]] int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

/// 0, or why a connection to the port was refused.
int connect_error(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto address = address_of(INADDR_LOOPBACK, port);
  const int result = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = result == 0 ? 0 : errno;
  ::close(fd);
  return error;
}

int free_port() { return ListeningSocket(0).port(); }

}  // namespace

TEST_CASE("B26 a port that is taken: an error within 3 s that names port and option, and no rank "
          "starts") {
  const auto host = GENERATE(INADDR_LOOPBACK, INADDR_ANY);
  const Occupant occupant(host);
  const auto port = std::to_string(occupant.port());
  LaunchedJob job(shell({"--num_processes", "2", "--main_process_port", port}, "echo started"));
  const auto finished = job.finish();
  CHECK(finished.status == 1);
  CHECK(finished.seconds < 3.0);
  CHECK(finished.out.empty());
  CHECK_THAT(finished.err, ContainsSubstring("port " + port) &&
                               ContainsSubstring("--main_process_port " + port) &&
                               ContainsSubstring("taken") &&
                               ContainsSubstring("--main_process_port 0"));
}

TEST_CASE("B26 two launches at once with port 0 both finish, on ports of their own") {
  const std::vector<std::string> flags{"--num_processes", "2", "--main_process_port", "0"};
  const std::string script = "[ $RANK = 1 ] && exit 0; echo $MASTER_PORT; read line; exit 0";
  LaunchedJob first(shell(flags, script));
  LaunchedJob second(shell(flags, script));
  const int first_port = std::stoi(first.line());
  const int second_port = std::stoi(second.line());
  CHECK(first_port != second_port);
  // Both are open while both jobs run.
  CHECK(connect_error(first_port) == 0);
  CHECK(connect_error(second_port) == 0);
  first.close_input();
  second.close_input();
  CHECK(first.wait().status == 0);
  CHECK(second.wait().status == 0);
  CHECK(::waitpid(-1, nullptr, WNOHANG) < 0);
}

TEST_CASE("B26 rank 0 inherits the socket that listens on MASTER_PORT; no other rank has it") {
  // The kernel's table of sockets names the inode of each, and the state of one that listens is 0A.
  LaunchedJob job(shell({"--num_processes", "2"},
                        "if [ $RANK = 1 ]; then ls -l /proc/self/fd | grep -c socket: ; echo \"fd: "
                        "$ACCEL_STORE_FD\"; exit 0; fi; "
                        "inode=$(readlink /proc/self/fd/$ACCEL_STORE_FD | tr -dc 0-9); "
                        "port=$(printf %04X $MASTER_PORT); "
                        "grep -c \"0100007F:$port 00000000:0000 0A .* $inode \" /proc/net/tcp"));
  CHECK(job.lines(3) == std::vector<std::string>{"0", "1", "fd: "});
  CHECK(job.finish().status == 0);
}

TEST_CASE(
    "B26 an explicit port that is free is the one that ranks get, also at once after another job") {
  const auto port = std::to_string(free_port());
  for (int i = 0; i < 3; ++i) {
    LaunchedJob job(
        shell({"--num_processes", "2", "--main_process_port", port}, "echo $MASTER_PORT"));
    CHECK(job.lines(2) == std::vector<std::string>{port, port});
    CHECK(job.finish().status == 0);
  }
}

TEST_CASE(
    "B26 when rank 0 is gone its port is closed, so that peers are refused instead of waiting") {
  LaunchedJob job(shell({"--num_processes", "2"},
                        "[ $RANK = 0 ] && { echo $MASTER_PORT; exit 0; }; exec sleep 1000"));
  const int port = std::stoi(job.line());
  const auto start = std::chrono::steady_clock::now();
  while (connect_error(port) == 0 && seconds_since(start) < patience.count()) ::usleep(1000);
  CHECK(connect_error(port) == ECONNREFUSED);
  job.send(SIGTERM);
  CHECK(job.finish().status == 143);
}

TEST_CASE("a socket of the system's choice is ours alone until it is closed") {
  ListeningSocket socket({});
  CHECK(socket.port() > 0);
  CHECK(connect_error(socket.port()) == 0);
  CHECK((::fcntl(socket.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_THROWS_AS(ListeningSocket(socket.port()), accel::Error);
  const int port = socket.port();
  ListeningSocket moved(std::move(socket));
  CHECK(connect_error(port) == 0);
  moved.close();
  CHECK(connect_error(port) == ECONNREFUSED);
}

TEST_CASE("a port whose last connections are still winding down can be had at once") {
  int port = 0;
  {
    const ListeningSocket socket({});
    port = socket.port();
    const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto address = address_of(INADDR_LOOPBACK, port);
    REQUIRE(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const int server = ::accept(socket.fd(), nullptr, nullptr);
    REQUIRE(server >= 0);
    ::close(server);  // the side that closes first keeps the port in TIME_WAIT
    ::close(client);
  }
  CHECK(ListeningSocket(port).port() == port);
}

TEST_CASE("ports that are no ports") {
  const auto port = GENERATE("-1", "65536", "http");
  CAPTURE(port);
  LaunchedJob job(
      shell({"--num_processes", "1", std::string("--main_process_port=") + port}, "echo started"));
  const auto finished = job.finish();
  CHECK(finished.status != 0);
  CHECK(finished.out.empty());
  CHECK_THAT(finished.err, ContainsSubstring("main_process_port"));
}
