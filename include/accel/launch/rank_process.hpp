// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank as a process: how it is started. Watching and stopping are the supervisor's.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace accel::detail {

/// A file descriptor that is closed with its owner.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

/// What the new process is to be.
struct RankStart {
  std::string path;                      ///< of the program
  std::vector<std::string> arguments;    ///< its own name first
  std::vector<std::string> environment;  ///< "NAME=value"
  std::optional<int> inherited_fd;       ///< stays open in the program although it is FD_CLOEXEC
  FileDescriptor input;                  ///< becomes stdin; none: the caller's
  FileDescriptor output;                 ///< becomes stdout; none: the caller's
  FileDescriptor error;                  ///< becomes stderr; none: the caller's
  sigset_t signal_mask{};                ///< the program's
};

/// A rank that was started.
struct RankProcess {
  pid_t pid = 0;         ///< also its session and its process group
  FileDescriptor pidfd;  ///< readable when the rank has ended; none on kernels without (before 5.3)
  FileDescriptor exec_fault;  ///< after its end: see exec_error
};

/// Starts a rank in a session and group of its own, with default signal handling, and to be killed
/// by the kernel if the calling thread ends. Does not wait for the program to be loaded. Throws
/// Error(launch) if no process can be had.
RankProcess start_rank(const RankStart& start);

/// Of a rank that has ended: the error number if its program could not be executed at all, else 0.
int exec_error(const RankProcess& process);

}  // namespace accel::detail
