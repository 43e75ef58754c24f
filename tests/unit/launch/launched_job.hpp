// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// accel-launch as a test sees it: a process with a stdin, whose output is read line by line, that
// is sent signals, and of which nothing may be left. The test process is a subreaper: whatever a
// job leaves behind becomes its child and is found.
#pragma once

#include <accel/launch/process_tree.hpp>

#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace accel_test {

using Seconds = std::chrono::duration<double>;

/// How long a test waits for what comes at once on a machine at rest.
inline constexpr Seconds patience{40};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return Seconds(std::chrono::steady_clock::now() - start).count();
}

/// Waits until this process has no child any more, those included that it inherited. How long that
/// took; it fails if it takes longer than `limit`.
inline double await_no_children(Seconds limit) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return seconds_since(start);
    if (seconds_since(start) > limit.count()) break;
    ::usleep(2000);
  }
  const auto left = accel::detail::descendants(::getpid()).size();
  accel::detail::kill_descendants();
  FAIL(left << " processes are left after " << limit.count() << " s");
  return 0;
}

struct Finished {
  int status = 0;   ///< exit code, or minus the signal that killed accel-launch
  std::string out;  ///< what had not been read as lines
  std::string err;
  double seconds = 0;  ///< from the call of finish()

  [[nodiscard]] std::vector<std::string> err_lines() const {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < err.size();) {
      const auto end = std::min(err.find('\n', at), err.size());
      lines.push_back(err.substr(at, end - at));
      at = end + 1;
    }
    return lines;
  }
};

class LaunchedJob {
 public:
  /// Runs accel-launch with `arguments`. `in_child` is called in the new process before.
  explicit LaunchedJob(const std::vector<std::string>& arguments,
                       const std::function<void()>& in_child = {}) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::signal(SIGPIPE, SIG_IGN);
    int in[2];
    int out[2];
    int err[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
    std::vector<std::string> words{ACCEL_BINARY_DIR "/bin/accel-launch"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::setpgid(0, 0);  // a group of its own, as a shell gives it
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      for (const char* name :
           {"RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "ACCEL_CONFIG_FILE", "ACCELERATE_CONFIG_FILE"})
        ::unsetenv(name);
      ::setenv("HOME", "/nonexistent", 1);  // no configuration of the person who runs the test
      ::unsetenv("XDG_CONFIG_HOME");
      if (in_child) in_child();
      ::execv(pointers[0], pointers.data());
      ::_exit(99);
    }
    ::setpgid(pid_, pid_);
    ::close(in[0]);
    ::close(out[1]);
    ::close(err[1]);
    in_ = in[1];
    out_ = {out[0], {}};
    err_ = {err[0], {}};
  }
  LaunchedJob(const LaunchedJob&) = delete;
  LaunchedJob& operator=(const LaunchedJob&) = delete;
  ~LaunchedJob() {
    close_input();
    ::close(out_.fd);
    ::close(err_.fd);
    if (pid_ != 0) {
      ::kill(pid_, SIGKILL);
      accel::detail::kill_descendants();
    }
  }

  [[nodiscard]] pid_t pid() const { return pid_; }

  void send(int signal) const { REQUIRE(::kill(pid_, signal) == 0); }

  void write(const std::string& text) const {
    REQUIRE(::write(in_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }

  void close_input() {
    if (in_ >= 0) ::close(std::exchange(in_, -1));
  }

  /// The next line of the job's stdout.
  std::string line() {
    const auto start = std::chrono::steady_clock::now();
    while (true) {
      if (const auto end = out_.text.find('\n'); end != std::string::npos) {
        auto line = out_.text.substr(0, end);
        out_.text.erase(0, end + 1);
        return line;
      }
      if (!read_some(start)) FAIL("no further line; stderr: " << err_.text);
    }
  }

  std::vector<std::string> lines(int count) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(line());
    std::ranges::sort(all);
    return all;
  }

  /// Waits for the end of accel-launch, and requires that nothing of the job is left at that
  /// moment.
  Finished finish() {
    auto finished = wait();
    const auto left = ::waitpid(-1, nullptr, WNOHANG);
    INFO("stderr: " << finished.err);
    if (left >= 0) {
      accel::detail::kill_descendants();
      FAIL("accel-launch ended, and processes of the job are left");
    }
    return finished;
  }

  /// Waits for the end of accel-launch.
  Finished wait() {
    const auto start = std::chrono::steady_clock::now();
    Finished finished;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (seconds_since(start) > patience.count())
        FAIL("accel-launch does not end; stderr: " << err_.text);
      read_some(start, 10);
    }
    finished.seconds = seconds_since(start);
    pid_ = 0;
    finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    for (auto* stream : {&out_, &err_}) {
      ::fcntl(stream->fd, F_SETFL, O_NONBLOCK);
      while (stream->read()) {
      }
    }
    finished.out = out_.text;
    finished.err = err_.text;
    return finished;
  }

 private:
  struct Stream {
    int fd = -1;
    std::string text;
    bool open = true;

    bool read() {
      char buffer[4096];
      const auto count = ::read(fd, buffer, sizeof buffer);
      if (count <= 0)
        open = false;
      else
        text.append(buffer, static_cast<std::size_t>(count));
      return count > 0;
    }
  };

  /// Reads what comes within `milliseconds`; false once both streams have ended, or after the
  /// test's patience.
  bool read_some(std::chrono::steady_clock::time_point start, int milliseconds = 100) {
    pollfd fds[2] = {{out_.open ? out_.fd : -1, POLLIN, 0}, {err_.open ? err_.fd : -1, POLLIN, 0}};
    ::poll(fds, 2, milliseconds);
    if (fds[0].revents != 0) out_.read();
    if (fds[1].revents != 0) err_.read();
    return (out_.open || err_.open) && seconds_since(start) < patience.count();
  }

  pid_t pid_ = 0;
  int in_ = -1;
  Stream out_;
  Stream err_;
};

/// `accel-launch <flags> sh -c <script>`.
inline std::vector<std::string> shell(std::vector<std::string> flags, const std::string& script) {
  flags.insert(flags.end(), {"sh", "-c", script});
  return flags;
}

}  // namespace accel_test
