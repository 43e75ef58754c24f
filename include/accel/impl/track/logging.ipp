// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/logging.hpp>
#include <accel/detail/error.hpp>

#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <mutex>
#include <set>

namespace accel {
namespace {

struct NamedLevel {
  std::string_view name;
  LogLevel level;
  spdlog::level::level_enum spdlog_level;
};

constexpr std::array levels = {
    NamedLevel{"trace", LogLevel::trace, spdlog::level::trace},
    NamedLevel{"debug", LogLevel::debug, spdlog::level::debug},
    NamedLevel{"info", LogLevel::info, spdlog::level::info},
    NamedLevel{"warning", LogLevel::warning, spdlog::level::warn},
    NamedLevel{"error", LogLevel::error, spdlog::level::err},
    NamedLevel{"critical", LogLevel::critical, spdlog::level::critical},
    NamedLevel{"off", LogLevel::off, spdlog::level::off},
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  return levels[static_cast<std::size_t>(level)].spdlog_level;
}

// The console has a lock of its own, so the sink needs none.
class ConsoleSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  ConsoleSink(std::shared_ptr<Console> console, bool shared_terminal)
      : console_(std::move(console)), shared_terminal_(shared_terminal) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    // A formatter keeps the time of its last message: one a call, so that threads share nothing.
    spdlog::memory_buf_t line;
    formatter_->clone()->format(message, line);
    console_->line({line.data(), line.size()}, shared_terminal_);
  }
  void flush_() override {}

 private:
  std::shared_ptr<Console> console_;
  bool shared_terminal_;
};

}  // namespace

struct Logger::State {
  Ranks ranks;
  std::function<void()> barrier;
  spdlog::logger logger;
  std::mutex mutex;
  std::set<std::string> said;
};

LogLevel log_level_from_environment(const EnvironmentLookup& environment) {
  for (const char* variable : {"ACCEL_LOG_LEVEL", "ACCELERATE_LOG_LEVEL"}) {
    const auto value = environment(variable);
    if (!value || value->empty()) continue;
    std::string name = *value;
    std::ranges::transform(name, name.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto found = std::ranges::find_if(levels, [&](auto& each) { return each.name == name; });
    if (found == levels.end())
      detail::fail(ErrorCategory::config,
                   "{}={} is no level; use trace, debug, info, warning, error, critical or off",
                   variable, *value);
    return found->level;
  }
  return LogLevel::info;
}

Logger::Logger(const Ranks& ranks, LoggerOptions options) {
  const bool several = ranks.size > 1;
  auto console = options.console ? std::move(options.console) : Console::standard_error();
  auto sink = std::make_shared<ConsoleSink>(std::move(console), several);
  std::string pattern = "[%Y-%m-%d %H:%M:%S] ";
  if (!options.name.empty()) pattern += "[%n] ";
  pattern += "[%l] ";
  if (several) pattern += fmt::format("[RANK {}] ", ranks.rank);
  sink->set_pattern(pattern + "%v");
  // NOLINTNEXTLINE(modernize-make-shared): an aggregate, which it cannot make with every compiler
  state_ = std::shared_ptr<State>(
      new State{.ranks = ranks,
                .barrier = std::move(options.barrier),
                .logger = spdlog::logger(std::move(options.name), std::move(sink)),
                .mutex = {},
                .said = {}});
  set_level(options.level ? *options.level : log_level_from_environment());
}

bool Logger::wanted(LogLevel level, LogOptions options) const {
  if (options.in_order) return true;
  if (options.main_process_only && state_->ranks.rank != 0) return false;
  return state_->logger.should_log(spdlog_level(level));
}

void Logger::write(LogLevel level, LogOptions options, std::string_view text) {
  const spdlog::string_view_t message(text.data(), text.size());
  if (!options.in_order || state_->ranks.size == 1) {
    state_->logger.log(spdlog_level(level), message);
    return;
  }
  if (!state_->barrier)
    detail::fail(ErrorCategory::usage,
                 "rank {}: a message in_order waits for the other ranks; give the logger a barrier",
                 state_->ranks.rank);
  for (int turn = 0; turn < state_->ranks.size; ++turn) {
    if (turn == state_->ranks.rank) state_->logger.log(spdlog_level(level), message);
    state_->barrier();
  }
}

void Logger::warn_once(const std::string& text) {
  if (!wanted(LogLevel::warning, {})) return;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->said.insert(text).second) return;
  }
  write(LogLevel::warning, {}, text);
}

void Logger::set_level(LogLevel level) { state_->logger.set_level(spdlog_level(level)); }

LogLevel Logger::level() const {
  const auto now = state_->logger.level();
  return std::ranges::find_if(levels, [&](auto& each) { return each.spdlog_level == now; })->level;
}

}  // namespace accel
