// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The keeper of a job (see launch.hpp for the two processes): starts every rank, waits for
// whichever ends first, and brings the others down. It never blocks on one rank, and it does not
// end before everything that ranks have started has.
#pragma once

#include <accel/launch/event_set.hpp>
#include <accel/launch/launch.hpp>
#include <accel/launch/listening_socket.hpp>
#include <accel/launch/rank_process.hpp>

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace accel::detail {

class Supervisor {
 public:
  /// `lifeline` reads end of file when the front process is gone. Signals of the calling thread
  /// must be blocked, and `signal_mask` is what ranks get instead.
  Supervisor(const LaunchJob& job, std::string program, ListeningSocket socket,
             FileDescriptor lifeline, const sigset_t& signal_mask);

  /// Runs the job to its end and returns the launcher's exit code.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    RankProcess process;
    bool running = false;
    int status = 0;      ///< as from waitpid, once it has ended
    int exec_error = 0;  ///< why its program could not be executed
    [[nodiscard]] bool succeeded() const noexcept { return status == 0 && exec_error == 0; }
  };

  void start_all();
  void watch();
  void wait_for_event();
  void on_signal();
  void on_end(Rank& rank, int status);
  void reap();
  void stop(int signal, std::chrono::milliseconds grace);
  void stop_leftovers();
  void kill_all();

  [[nodiscard]] std::vector<int> running() const;
  [[nodiscard]] int index_of(const Rank& rank) const {
    return static_cast<int>(&rank - ranks_.data());
  }
  [[nodiscard]] std::string ending_of(const Rank& rank) const;
  void report(const std::string& sentence) const;
  void report_others() const;
  [[nodiscard]] int exit_code() const;

  const LaunchJob& job_;
  std::string program_;
  ListeningSocket socket_;
  FileDescriptor lifeline_;
  sigset_t signal_mask_;
  FileDescriptor signals_;
  EventSet events_;
  std::vector<Rank> ranks_;

  std::optional<int> first_failure_;  ///< the rank that failed before anything was stopped
  std::optional<int> signal_;         ///< what the launcher was told to end with
  std::optional<Clock::time_point> kill_time_;       ///< set once the job is being stopped
  Clock::time_point stop_time_;                      ///< when that began
  std::optional<Clock::time_point> leftovers_told_;  ///< when last, see stop_leftovers
  std::vector<int> killed_;                          ///< ranks that outlived the grace period
};

}  // namespace accel::detail
