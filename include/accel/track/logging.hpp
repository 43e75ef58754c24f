// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A logger that knows ranks: one process speaks for all unless asked otherwise. spdlog does the
// formatting and filtering (in the body, so that training code does not compile it); console.hpp
// keeps lines out of progress bars.
#pragma once

#include <accel/comm/ranks.hpp>
#include <accel/track/console.hpp>

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace accel {

enum class LogLevel { trace, debug, info, warning, error, critical, off };

/// Who says a message: `logger.info({.main_process_only = false}, "loss {}", loss)`.
struct LogOptions {
  bool main_process_only = true;
  /// All ranks, one after the other by rank, whatever main_process_only says. Every rank must call
  /// this.
  bool in_order = false;
};

struct LoggerOptions {
  std::string name{};                  ///< shown in each line; empty for none
  std::optional<LogLevel> level{};     ///< default: log_level_from_environment()
  std::function<void()> barrier{};     ///< waits for all ranks; needed for in_order
  std::shared_ptr<Console> console{};  ///< default: standard error
};

/// ACCEL_LOG_LEVEL, else ACCELERATE_LOG_LEVEL (trace, debug, info, warning, error, critical, off;
/// any case), else info. Error(config) that names the variable if its value is none of them.
[[nodiscard]] LogLevel log_level_from_environment(
    const EnvironmentLookup& environment = process_environment);

/// Lines look like `[2026-01-01 12:00:00] [warning] [RANK 1] text`, without the rank if the job has
/// one process. Copies share level and memory of warnings. Threads may share one. Keeps nothing
/// global: loggers are independent of each other and of spdlog's own.
class Logger {
 public:
  explicit Logger(const Ranks& ranks = {}, LoggerOptions options = {});

  template <class... Arguments>
  void log(LogLevel level, LogOptions options, fmt::format_string<Arguments...> format,
           Arguments&&... arguments) {
    if (wanted(level, options))
      write(level, options, fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  // Each level twice: for the main process, and for whom the options say.

  template <class... Arguments>
  void debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    log(LogLevel::debug, {}, format, std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void debug(LogOptions options, fmt::format_string<Arguments...> format,
             Arguments&&... arguments) {
    log(LogLevel::debug, options, format, std::forward<Arguments>(arguments)...);
  }

  template <class... Arguments>
  void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    log(LogLevel::info, {}, format, std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void info(LogOptions options, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    log(LogLevel::info, options, format, std::forward<Arguments>(arguments)...);
  }

  template <class... Arguments>
  void warning(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    log(LogLevel::warning, {}, format, std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void warning(LogOptions options, fmt::format_string<Arguments...> format,
               Arguments&&... arguments) {
    log(LogLevel::warning, options, format, std::forward<Arguments>(arguments)...);
  }

  template <class... Arguments>
  void error(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    log(LogLevel::error, {}, format, std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void error(LogOptions options, fmt::format_string<Arguments...> format,
             Arguments&&... arguments) {
    log(LogLevel::error, options, format, std::forward<Arguments>(arguments)...);
  }

  template <class... Arguments>
  void critical(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    log(LogLevel::critical, {}, format, std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void critical(LogOptions options, fmt::format_string<Arguments...> format,
                Arguments&&... arguments) {
    log(LogLevel::critical, options, format, std::forward<Arguments>(arguments)...);
  }

  /// A warning whose text was said before is not said again, by this logger or a copy.
  template <class... Arguments>
  void warning_once(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    warn_once(fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  void set_level(LogLevel level);
  [[nodiscard]] LogLevel level() const;

 private:
  struct State;

  // Also true for a message that is only waited for: in_order has barriers, which no level may skip
  // on one rank alone.
  [[nodiscard]] bool wanted(LogLevel level, LogOptions options) const;
  void write(LogLevel level, LogOptions options, std::string_view text);
  void warn_once(const std::string& text);

  std::shared_ptr<State> state_;
};

}  // namespace accel
