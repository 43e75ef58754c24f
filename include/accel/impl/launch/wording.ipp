// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/wording.hpp.

#include <accel/launch/wording.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace accel::detail {

void report_line(const std::string& sentence) {
  pollfd target{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&target, 1, 200) <= 0 || (target.revents & POLLOUT) == 0) return;
  const auto line = fmt::format("accel-launch: {}\n", sentence);
  // In one call, so that it is not torn by what ranks write.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string list_of(const std::vector<int>& ranks) {
  constexpr std::size_t most = 8;
  if (ranks.empty()) return {};
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const auto shown = std::min(ranks.size(), most) - 1;
  const std::vector<int> head(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown));
  if (ranks.size() > most)
    return fmt::format("ranks {} and {} others", fmt::join(head, ", "), ranks.size() - shown);
  return fmt::format("ranks {} and {}", fmt::join(head, ", "), ranks.back());
}

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000.0);
}

std::string ending(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return fmt::format("exit code {}", WEXITSTATUS(wait_status));
  const int number = WTERMSIG(wait_status);
  const char* words = ::sigdescr_np(number);
  return fmt::format("killed by {} ({}){}", signal_name(number),
                     words != nullptr ? words : "unknown",
                     WCOREDUMP(wait_status) ? ", core dumped" : "");
}

}  // namespace accel::detail
