// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/rank_process.hpp.
#include <accel/launch/rank_process.hpp>
#include <accel/detail/error.hpp>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace accel::detail {

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() { close(); }

void FileDescriptor::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> all;
  for (const auto& text : strings) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

/// Between fork and exec: only calls that are allowed in a signal handler, since the caller may
/// have had threads.
[[noreturn]] void become(const RankStart& start, char** arguments, char** environment, pid_t parent,
                         int fault) {
  // A session, not only a group: the terminal's Ctrl-C reaches the launcher alone, and rank 0 may
  // still read from the terminal, which stops processes of background groups but not of other
  // sessions.
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it was gone before the line above

  // Handlers do not survive exec, but "ignore" does; a rank that ignores SIGTERM because its
  // launcher was started so would never end. SIGHUP stays ignored under nohup.
  for (const int number : {SIGTERM, SIGINT, SIGQUIT, SIGPIPE, SIGCHLD}) ::signal(number, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);

  bool ready = true;
  if (start.input) ready = ready && ::dup2(start.input.get(), STDIN_FILENO) >= 0;
  if (start.output) ready = ready && ::dup2(start.output.get(), STDOUT_FILENO) >= 0;
  if (start.error) ready = ready && ::dup2(start.error.get(), STDERR_FILENO) >= 0;
  if (start.inherited_fd) ready = ready && ::fcntl(*start.inherited_fd, F_SETFD, 0) == 0;
  if (ready) ::execve(start.path.c_str(), arguments, environment);

  const int error = errno;
  const auto written = ::write(fault, &error, sizeof error);
  ::_exit(written == sizeof error ? 127 : 126);
}

}  // namespace

RankProcess start_rank(const RankStart& start) {
  auto arguments = pointers(start.arguments);
  auto environment = pointers(start.environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    fail(ErrorCategory::launch,
         "no pipe can be opened: {}; raise the limit on open files (ulimit -n)",
         std::strerror(errno));
  RankProcess process;
  process.exec_fault = FileDescriptor(ends[0]);
  const FileDescriptor write_end(ends[1]);

  const pid_t parent = ::getpid();
  process.pid = ::fork();
  if (process.pid < 0)
    fail(ErrorCategory::launch,
         "no process can be started: {}; start fewer (--num_processes), or raise the limit on "
         "processes (ulimit -u)",
         std::strerror(errno));
  if (process.pid == 0)
    become(start, arguments.data(), environment.data(), parent, write_end.get());
  // By number: glibc has a function for it only from 2.36 on. The new descriptor is FD_CLOEXEC.
  process.pidfd = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  return process;
}

int exec_error(const RankProcess& process) {
  int error = 0;
  return ::read(process.exec_fault.get(), &error, sizeof error) == sizeof error ? error : 0;
}

}  // namespace accel::detail
