// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/listening_socket.hpp.
#include <accel/launch/listening_socket.hpp>
#include <accel/detail/error.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace accel::detail {

namespace {

[[noreturn]] void refuse(int port, int error) {
  if (error == EADDRINUSE && port != 0)
    fail(ErrorCategory::launch,
         "port {} (--main_process_port {}) is taken by another program on this host; name another "
         "one, or use --main_process_port 0 for a free one",
         port, port);
  if (error == EACCES)
    fail(ErrorCategory::launch,
         "port {} (--main_process_port {}) is reserved to the administrator; use one above 1023, "
         "or 0 for a free one",
         port, port);
  fail(ErrorCategory::launch, "cannot listen on port {} of 127.0.0.1 (--main_process_port): {}",
       port, std::strerror(error));
}

}  // namespace

ListeningSocket::ListeningSocket(std::optional<int> wanted) : port_(wanted.value_or(0)) {
  if (port_ < 0 || port_ > 65535)
    fail(ErrorCategory::config,
         "--main_process_port is {}, but ports are 1 to 65535; 0 takes a free one", port_);
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) refuse(port_, errno);
  // Lets a port of a job that has just ended be used at once. A socket that still listens is
  // refused all the same.
  const int yes = 1;
  ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  // Listening at once makes the port ours beyond doubt, and lets ranks connect before rank 0 has
  // got to serving it.
  if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(fd_, SOMAXCONN) != 0 ||
      ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const int error = errno;
    close();
    refuse(port_, error);
  }
  port_ = ntohs(address.sin_port);
}

ListeningSocket::ListeningSocket(ListeningSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}

ListeningSocket::~ListeningSocket() { close(); }

void ListeningSocket::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

}  // namespace accel::detail
