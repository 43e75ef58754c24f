// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The port on which the ranks of a job meet. The launcher binds it before anything starts and rank
// 0 inherits the socket: a port that is looked for, released and bound again belongs to whoever is
// faster.
#pragma once

#include <optional>

namespace accel::detail {

/// A TCP socket that listens on the loopback interface. Not inherited by programs unless they are
/// told to (FD_CLOEXEC).
class ListeningSocket {
 public:
  /// `port` none or 0: a free port, chosen by the system. Throws Error(launch) that names the port
  /// and --main_process_port if it is taken.
  explicit ListeningSocket(std::optional<int> port);
  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] int port() const noexcept { return port_; }

  /// Gives up this process's copy.
  void close() noexcept;

 private:
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace accel::detail
