// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/launch.hpp.
#include <accel/launch/launch.hpp>
#include <accel/detail/error.hpp>
#include <accel/launch/process_tree.hpp>
#include <accel/launch/program_path.hpp>
#include <accel/launch/supervisor.hpp>
#include <accel/launch/wording.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace accel {

namespace {

using detail::fail;

void check(const LaunchJob& job) {
  if (job.command.empty())
    fail(ErrorCategory::config,
         "no program was named; use accel-launch --num_processes N program arguments...");
  if (job.num_processes < 1)
    fail(ErrorCategory::config, "--num_processes is {}, but a job has at least one process",
         job.num_processes);
  if (job.num_cpu_threads_per_process && *job.num_cpu_threads_per_process < 1)
    fail(ErrorCategory::config,
         "--num_cpu_threads_per_process is {}, but a process has at least one thread",
         *job.num_cpu_threads_per_process);
  if (job.grace_period.count() < 0)
    fail(ErrorCategory::config, "--grace_period is {} s, but it is a time, at least 0",
         static_cast<double>(job.grace_period.count()) / 1000.0);
}

/// Descriptors 0 to 2 may be closed (a daemon's child); what is opened next would take their place.
void fill_standard_descriptors() {
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd < 0) return;
    if (fd > STDERR_FILENO) {
      ::close(fd);
      return;
    }
  }
}

void make_log_folders(const LaunchJob& job) {
  if (job.log_dir.empty()) return;
  for (int rank = 0; rank < job.num_processes; ++rank) {
    const auto folder = job.log_dir / std::to_string(rank);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      fail(ErrorCategory::launch,
           "the folder {} for the output of rank {} cannot be made (--log_dir): {}",
           folder.string(), rank, error.message());
  }
}

/// Signals that end the job, blocked while one is running; they are waited for instead. SIGCHLD is
/// brought back to its default: a caller that ignores it would make the kernel throw away how
/// children ended.
class WaitedSignals {
 public:
  WaitedSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set_, number);
    // nohup: the job is to outlive its terminal.
    struct sigaction hangup{};
    ::sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set_, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &child_before_);
  }
  WaitedSignals(const WaitedSignals&) = delete;
  WaitedSignals& operator=(const WaitedSignals&) = delete;
  ~WaitedSignals() {
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  [[nodiscard]] const sigset_t& before() const noexcept { return before_; }

  [[nodiscard]] int wait() const {
    int number = -1;
    while ((number = ::sigwaitinfo(&set_, nullptr)) < 0 && errno == EINTR) {
    }
    return number;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
  struct sigaction child_before_{};
};

/// The keeper's life. Never returns into the caller's code, which is the front's.
[[noreturn]] void keep(const LaunchJob& job, const std::string& program,
                       detail::ListeningSocket socket, detail::FileDescriptor lifeline,
                       const sigset_t& rank_mask) {
  int code = 1;
  const detail::Subreaper subreaper;
  try {
    // Away from the terminal and from signals to the front's group, which the front passes on once.
    ::setsid();
    ::signal(SIGPIPE, SIG_IGN);
    code =
        detail::Supervisor(job, program, std::move(socket), std::move(lifeline), rank_mask).run();
  } catch (const std::exception& error) {
    detail::report_line(error.what());
    detail::kill_descendants();
  }
  ::_exit(code);
}

/// Passes signals on until the keeper has ended; its wait status.
int wait_for_keeper(pid_t keeper, const WaitedSignals& signals) {
  int status = 0;
  while (true) {
    const int number = signals.wait();
    if (number != SIGCHLD) {
      ::kill(keeper, number);
    } else if (::waitpid(keeper, &status, WNOHANG) == keeper) {
      return status;
    }
  }
}

}  // namespace

int launch(const LaunchJob& job) {
  check(job);
  const char* search_path = std::getenv("PATH");
  const auto program = detail::find_program(job.command.front(),
                                            search_path != nullptr ? search_path : "/usr/bin:/bin");
  if (!program.fault.empty()) {
    detail::report_line(program.fault);
    return program.exit_code;
  }
  fill_standard_descriptors();
  make_log_folders(job);
  detail::ListeningSocket socket(job.main_process_port);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail(ErrorCategory::launch,
         "no pipe can be opened: {}; raise the limit on open files (ulimit -n)",
         std::strerror(errno));
  detail::FileDescriptor lifeline(ends[0]);
  detail::FileDescriptor our_end(ends[1]);

  const WaitedSignals signals;
  const detail::Subreaper subreaper;
  const pid_t keeper = ::fork();
  if (keeper < 0)
    fail(ErrorCategory::launch,
         "no process can be started: {}; raise the limit on processes (ulimit -u)",
         std::strerror(errno));
  if (keeper == 0) {
    our_end.close();
    keep(job, program.path, std::move(socket), std::move(lifeline), signals.before());
  }
  socket.close();

  const int status = wait_for_keeper(keeper, signals);
  // A keeper that was killed took the ranks with it, and what they had started is ours now.
  detail::kill_descendants();
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  detail::report_line(fmt::format("the process that kept the ranks was {}; the ranks were killed",
                                  detail::ending(status)));
  constexpr int killed_by = 128;
  return killed_by + WTERMSIG(status);
}

}  // namespace accel
