// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/supervisor.hpp.
#include <accel/launch/supervisor.hpp>
#include <accel/detail/error.hpp>
#include <accel/launch/process_tree.hpp>
#include <accel/launch/program_path.hpp>
#include <accel/launch/rank_environment.hpp>
#include <accel/launch/wording.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace accel::detail {

using std::chrono::milliseconds;

namespace {

/// The names of events; ranks go by their own number.
constexpr std::uint32_t signal_event = 0xffffffffU;
constexpr std::uint32_t lifeline_event = 0xfffffffeU;

/// How long ranks have once the front process is gone: nobody waits for the job any more.
constexpr milliseconds orphan_grace{3000};

/// How often processes that ranks left running are told to stop.
constexpr milliseconds reminder{500};

/// A SIGINT this soon after another signal is the same wish, sent to the process and to its group
/// (as `timeout` does).
constexpr milliseconds same_wish{500};

FileDescriptor open_file(const std::filesystem::path& path, int flags) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file)
    fail(ErrorCategory::launch, "{} cannot be opened: {}; see --log_dir", path.string(),
         std::strerror(errno));
  return file;
}

}  // namespace

Supervisor::Supervisor(const LaunchJob& job, std::string program, ListeningSocket socket,
                       FileDescriptor lifeline, const sigset_t& signal_mask)
    : job_(job),
      program_(std::move(program)),
      socket_(std::move(socket)),
      lifeline_(std::move(lifeline)),
      signal_mask_(signal_mask) {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&watched, number);
  signals_ = FileDescriptor(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_)
    fail(ErrorCategory::launch,
         "the ranks cannot be watched: {}; raise the limit on open files (ulimit -n)",
         std::strerror(errno));
  events_.add(signals_, signal_event);
  events_.add(lifeline_, lifeline_event);
}

int Supervisor::run() {
  try {
    start_all();
  } catch (const Error& error) {
    report_line(error.what());
    kill_all();
    return 1;
  }
  watch();
  report_others();
  return exit_code();
}

void Supervisor::start_all() {
  const auto caller = current_environment();
  const MeetingPoint meeting_point{socket_.port(), socket_.fd()};
  ranks_.resize(static_cast<std::size_t>(job_.num_processes));
  for (auto& rank : ranks_) {
    const int number = index_of(rank);
    RankStart start;
    start.path = program_;
    start.arguments = job_.command;
    for (const auto& [name, value] : rank_environment(job_, number, meeting_point, caller))
      start.environment.push_back(fmt::format("{}={}", name, value));
    if (number == 0) start.inherited_fd = socket_.fd();
    if (number != 0) start.input = open_file("/dev/null", O_RDONLY);
    start.signal_mask = signal_mask_;
    if (!job_.log_dir.empty()) {
      const auto folder = job_.log_dir / std::to_string(number);
      start.output = open_file(folder / "stdout.log", O_WRONLY | O_CREAT | O_APPEND);
      start.error = open_file(folder / "stderr.log", O_WRONLY | O_CREAT | O_APPEND);
    }
    try {
      rank.process = start_rank(start);
    } catch (const Error& failure) {
      fail(ErrorCategory::launch, "rank {} of {} was not started: {}", number, job_.num_processes,
           failure.what());
    }
    rank.running = true;
    if (rank.process.pidfd) events_.add(rank.process.pidfd, static_cast<std::uint32_t>(number));
    // From here on the port lives and dies with rank 0: peers of a dead rank 0 are refused at once
    // instead of waiting.
    if (number == 0) socket_.close();
  }
}

/// Ends when nothing of the job is left.
void Supervisor::watch() {
  while (true) {
    reap();
    if (running().empty()) {
      const bool no_child = ::waitid(P_ALL, 0, nullptr, WEXITED | WNOHANG | WNOWAIT) != 0;
      if (no_child) return;
      stop_leftovers();
    }
    if (kill_time_ && Clock::now() >= *kill_time_) {
      kill_all();
      return;
    }
    wait_for_event();
  }
}

/// Tells what ranks have left running to stop, again and again: a rank can start a process after it
/// got the signal, and end; and a process that has only just been started can lose its signal, to a
/// handler that it had from its parent until its exec.
void Supervisor::stop_leftovers() {
  const auto now = Clock::now();
  if (leftovers_told_ && now - *leftovers_told_ < reminder) return;
  leftovers_told_ = now;
  const bool by_themselves = !kill_time_;
  stop(SIGTERM, job_.grace_period);
  if (by_themselves)
    report(fmt::format("every rank has ended, but processes that they started are running; "
                       "stopping them (killed after {})",
                       seconds(job_.grace_period)));
}

void Supervisor::wait_for_event() {
  int timeout = -1;
  if (kill_time_) {
    const auto left = std::chrono::ceil<milliseconds>(*kill_time_ - Clock::now());
    timeout = static_cast<int>(std::clamp(left, milliseconds(0), reminder).count());
  }
  // In the order of time, so that the first rank of the list is the first that ended, even if this
  // process was not running meanwhile. (waitpid goes by the order in which ranks were started.)
  for (const auto name : events_.wait(timeout)) {
    if (name == signal_event) {
      on_signal();
    } else if (name == lifeline_event) {
      events_.remove(lifeline_);
      stop(SIGTERM, std::min(job_.grace_period, orphan_grace));
    } else {
      auto& rank = ranks_[name];
      int status = 0;
      if (rank.running && ::waitpid(rank.process.pid, &status, WNOHANG) == rank.process.pid)
        on_end(rank, status);
    }
  }
}

void Supervisor::on_signal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;  // reap() looks after every event
    if (!signal_ && !first_failure_) {
      signal_ = number;
      stop(number, job_.grace_period);
      const auto stopped = list_of(running());
      report(fmt::format("{}: stopping {} (killed after {}{})", signal_name(number),
                         stopped.empty() ? "what ranks left running" : stopped,
                         seconds(job_.grace_period),
                         number == SIGINT ? ", or by a second Ctrl-C" : ""));
    } else if (number == SIGINT && Clock::now() - stop_time_ > same_wish) {
      kill_time_ = Clock::now();  // somebody does not want to wait
    }
  }
}

/// Waits for children that have no descriptor in the set: orphans that were handed to us, and ranks
/// on old kernels.
void Supervisor::reap() {
  siginfo_t info{};
  while (info.si_pid = 0,
         ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const auto rank = std::ranges::find_if(ranks_, [&](const Rank& candidate) {
      return candidate.running && candidate.process.pid == info.si_pid;
    });
    // A rank with a descriptor waits for its event, which keeps the order; its end also brings us
    // back here.
    if (rank != ranks_.end() && rank->process.pidfd) return;
    int status = 0;
    if (::waitpid(info.si_pid, &status, WNOHANG) <= 0) return;
    if (rank != ranks_.end()) on_end(*rank, status);
  }
}

void Supervisor::on_end(Rank& rank, int status) {
  rank.running = false;
  rank.status = status;
  rank.exec_error = exec_error(rank.process);
  events_.remove(rank.process.pidfd);
  rank.process.exec_fault.close();
  if (rank.succeeded() || kill_time_) return;
  first_failure_ = index_of(rank);
  stop(SIGTERM, job_.grace_period);
  const auto stopped = list_of(running());
  report(fmt::format("rank {} of {} failed first: {}{}", *first_failure_, ranks_.size(),
                     ending_of(rank),
                     stopped.empty() ? "" : fmt::format("; stopping {}", stopped)));
}

void Supervisor::stop(int signal, milliseconds grace) {
  const auto now = Clock::now();
  if (!kill_time_) stop_time_ = now;
  const auto kill_time = now + grace;
  kill_time_ = kill_time_ ? std::min(*kill_time_, kill_time) : kill_time;
  std::unordered_set<pid_t> groups;
  for (const auto& rank : ranks_) {
    if (!rank.running) continue;
    // Its number cannot be another's: nobody has waited for the rank yet. (ESRCH: it has not got to
    // its setsid.)
    if (::kill(-rank.process.pid, signal) != 0) ::kill(rank.process.pid, signal);
    groups.insert(rank.process.pid);
  }
  // What left its rank's group, or outlived its rank.
  for (const auto& process : descendants(::getpid()))
    if (!groups.contains(process.group) && !groups.contains(process.pid))
      ::kill(process.pid, signal);
}

void Supervisor::kill_all() {
  killed_ = running();
  for (const int rank : killed_)
    ::kill(-ranks_[static_cast<std::size_t>(rank)].process.pid, SIGKILL);
  kill_descendants([this](pid_t pid, int status) {
    for (auto& rank : ranks_) {
      if (!rank.running || rank.process.pid != pid) continue;
      rank.running = false;
      rank.status = status;
    }
  });
}

std::vector<int> Supervisor::running() const {
  std::vector<int> numbers;
  for (const auto& rank : ranks_)
    if (rank.running) numbers.push_back(index_of(rank));
  return numbers;
}

std::string Supervisor::ending_of(const Rank& rank) const {
  if (rank.exec_error != 0) return exec_fault(program_, rank.exec_error);
  if (job_.log_dir.empty()) return ending(rank.status);
  const auto log = job_.log_dir / std::to_string(index_of(rank)) / "stderr.log";
  return fmt::format("{} (see {})", ending(rank.status), log.string());
}

void Supervisor::report(const std::string& sentence) const {
  if (!job_.quiet) report_line(sentence);
}

/// What came after the first failure, where it was not simply the SIGTERM that we sent.
void Supervisor::report_others() const {
  if (!killed_.empty())
    report(fmt::format("{} did not end within the grace period and {} killed (--grace_period)",
                       list_of(killed_), killed_.size() == 1 ? "was" : "were"));
  if (!first_failure_) return;
  for (const auto& rank : ranks_) {
    const bool ours = WIFSIGNALED(rank.status) &&
                      (WTERMSIG(rank.status) == SIGTERM || WTERMSIG(rank.status) == SIGKILL);
    if (index_of(rank) != *first_failure_ && !rank.succeeded() && !ours)
      report(fmt::format("after it, rank {}: {}", index_of(rank), ending_of(rank)));
  }
}

int Supervisor::exit_code() const {
  constexpr int killed_by = 128;
  if (signal_) return killed_by + *signal_;
  if (!first_failure_) return 0;
  const auto& rank = ranks_[static_cast<std::size_t>(*first_failure_)];
  if (rank.exec_error != 0) return exec_exit_code(rank.exec_error);
  return WIFSIGNALED(rank.status) ? killed_by + WTERMSIG(rank.status) : WEXITSTATUS(rank.status);
}

}  // namespace accel::detail
