// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/logging.hpp>
#include <accel/detail/error.hpp>
#include <catch2/catch_test_macros.hpp>
#include <support/pseudo_terminal.hpp>

#include <barrier>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using accel::Console;
using accel::Logger;
using accel::LogLevel;
using accel::LogOptions;
using accel::Ranks;
using accel_test::Pipe;

namespace {

// What follows the time of day.
std::vector<std::string> said(Pipe& pipe) {
  std::vector<std::string> result;
  constexpr std::string_view stamp = "[0000-00-00 00:00:00] ";
  for (const auto& line : pipe.lines()) {
    std::string start = line.substr(0, stamp.size());
    for (char& c : start)
      if (c >= '0' && c <= '9') c = '0';
    REQUIRE(start == stamp);
    result.push_back(line.substr(stamp.size()));
  }
  return result;
}

Ranks ranks_of(int rank, int size) {
  Ranks ranks;
  ranks.rank = rank;
  ranks.size = size;
  return ranks;
}

Logger logger_on(const Pipe& pipe, int rank = 0, int size = 1, LogLevel level = LogLevel::info) {
  return Logger(ranks_of(rank, size),
                {.level = level, .console = std::make_shared<Console>(pipe.descriptor())});
}

using Lines = std::vector<std::string>;

accel::EnvironmentLookup environment(std::string name, std::string value) {
  return
      [=](const std::string& asked) { return asked == name ? std::optional(value) : std::nullopt; };
}

}  // namespace

TEST_CASE("one process logs without a rank, by level") {
  Pipe pipe;
  Logger logger = logger_on(pipe);
  logger.debug("hidden");
  logger.info("loss {:.2f}", 1.5);
  logger.warning("careful");
  logger.error("wrong");
  logger.critical("over");
  CHECK(said(pipe) ==
        Lines{"[info] loss 1.50", "[warning] careful", "[error] wrong", "[critical] over"});
  logger.set_level(LogLevel::error);
  CHECK(logger.level() == LogLevel::error);
  logger.warning("hidden");
  logger.error("shown");
  CHECK(said(pipe) == Lines{"[error] shown"});
}

TEST_CASE("a name is shown in each line") {
  Pipe pipe;
  Logger logger({}, {.name = "train",
                     .level = LogLevel::info,
                     .console = std::make_shared<Console>(pipe.descriptor())});
  logger.info("x");
  CHECK(said(pipe) == Lines{"[train] [info] x"});
}

TEST_CASE("of several ranks the main process speaks, and all where asked") {
  Pipe pipe;
  for (const int rank : {0, 1}) {
    Logger logger = logger_on(pipe, rank, 2);
    logger.info("one");
    logger.info({.main_process_only = false}, "all {}", rank);
    logger.debug({.main_process_only = false}, "hidden");
  }
  CHECK(said(pipe) ==
        Lines{"[info] [RANK 0] one", "[info] [RANK 0] all 0", "[info] [RANK 1] all 1"});
}

TEST_CASE("in order, ranks speak one after the other, also where a level hides some of them") {
  constexpr int size = 4;
  Pipe pipe;
  std::barrier barrier(size);
  std::vector<std::thread> ranks;
  for (int rank = size - 1; rank >= 0; --rank) {
    ranks.emplace_back([&, rank] {
      Logger logger(ranks_of(rank, size),
                    {.level = rank == 2 ? LogLevel::error : LogLevel::info,
                     .barrier = [&] { barrier.arrive_and_wait(); },
                     .console = std::make_shared<Console>(pipe.descriptor())});
      for (int round = 0; round < 10; ++round) logger.info({.in_order = true}, "round {}", round);
    });
  }
  for (auto& each : ranks) each.join();
  Lines expected;
  for (int round = 0; round < 10; ++round)
    for (const int rank : {0, 1, 3})
      expected.push_back(fmt::format("[info] [RANK {}] round {}", rank, round));
  CHECK(said(pipe) == expected);
}

TEST_CASE("in order needs a barrier, except of one process") {
  Pipe pipe;
  Logger alone = logger_on(pipe);
  alone.info({.in_order = true}, "x");
  CHECK(said(pipe) == Lines{"[info] x"});
  Logger logger = logger_on(pipe, 1, 2);
  CHECK_THROWS_AS(logger.info({.in_order = true}, "x"), accel::Error);
}

TEST_CASE("a warning is said once, by a logger and its copies, on the main process") {
  Pipe pipe;
  Logger logger = logger_on(pipe);
  Logger copy = logger;
  for (int i = 0; i < 3; ++i) {
    logger.warning_once("skipped {}", "a");
    copy.warning_once("skipped {}", "a");
    copy.warning_once("skipped {}", "b");
  }
  CHECK(said(pipe) == Lines{"[warning] skipped a", "[warning] skipped b"});
  Logger other = logger_on(pipe, 1, 2);
  other.warning_once("skipped");
  CHECK(said(pipe).empty());
}

TEST_CASE("a warning that was hidden is not taken for said") {
  Pipe pipe;
  Logger logger = logger_on(pipe, 0, 1, LogLevel::error);
  logger.warning_once("x");
  logger.set_level(LogLevel::info);
  logger.warning_once("x");
  CHECK(said(pipe) == Lines{"[warning] x"});
}

TEST_CASE("text with braces and percent signs is left alone") {
  Pipe pipe;
  Logger logger = logger_on(pipe);
  logger.info("{}", "{} %v 100%");
  CHECK(said(pipe) == Lines{"[info] {} %v 100%"});
}

TEST_CASE("the level comes from the environment, ours first") {
  CHECK(accel::log_level_from_environment(environment("NOTHING", "")) == LogLevel::info);
  CHECK(accel::log_level_from_environment(environment("ACCEL_LOG_LEVEL", "debug")) ==
        LogLevel::debug);
  CHECK(accel::log_level_from_environment(environment("ACCELERATE_LOG_LEVEL", "WARNING")) ==
        LogLevel::warning);
  CHECK(accel::log_level_from_environment(environment("ACCELERATE_LOG_LEVEL", "")) ==
        LogLevel::info);
  CHECK(accel::log_level_from_environment([](const std::string& name) {
          return std::optional<std::string>(name == "ACCEL_LOG_LEVEL" ? "off" : "debug");
        }) == LogLevel::off);
  try {
    (void)accel::log_level_from_environment(environment("ACCEL_LOG_LEVEL", "loud"));
    FAIL("no error");
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::config);
    CHECK(std::string(error.what()).find("ACCEL_LOG_LEVEL=loud") != std::string::npos);
  }
}

TEST_CASE("a line of a rank wipes the bar that another process has drawn on the same terminal") {
  accel_test::PseudoTerminal terminal(80);
  const auto console = std::make_shared<Console>(terminal.descriptor());
  console->show(&terminal, "a bar");  // of rank 0
  Logger other(ranks_of(1, 2),
               {.level = LogLevel::info,  // in a process, hence a console, of its own
                .console = std::make_shared<Console>(terminal.descriptor())});
  other.info({.main_process_only = false}, "hello");
  console->show(&terminal, "a bar again");
  REQUIRE(terminal.screen().size() == 2);
  CHECK(terminal.screen()[0].ends_with("[RANK 1] hello"));
  CHECK(terminal.screen()[0].starts_with("["));
  CHECK(terminal.screen()[1] == "a bar again");
}

TEST_CASE("threads may share a logger") {
  Pipe pipe;
  Logger logger = logger_on(pipe);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) logger.info("line");
    });
  for (auto& each : threads) each.join();
  CHECK(said(pipe) == Lines(200, "[info] line"));
}
