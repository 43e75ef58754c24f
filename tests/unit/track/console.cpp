// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bars, log lines and other streams on one terminal.
#include <accel/track/console.hpp>
#include <accel/track/logging.hpp>
#include <accel/track/progress.hpp>
#include <catch2/catch_test_macros.hpp>
#include <support/pseudo_terminal.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

using accel::Console;
using accel::Progress;
using accel_test::PseudoTerminal;
using namespace std::chrono_literals;

namespace {

// Time that passes only when a test says so.
struct Clock {
  std::chrono::steady_clock::time_point now{};
  auto function() {
    return [this] { return now; };
  }
};

std::shared_ptr<Console> console_on(int descriptor) {
  ::setenv("LC_ALL", "C.UTF-8", 1);
  ::setenv("TERM", "xterm", 1);
  return std::make_shared<Console>(descriptor);
}

}  // namespace

TEST_CASE("log lines scroll above a bar, and never into it") {
  PseudoTerminal terminal(90);
  Clock clock;
  const auto console = console_on(terminal.descriptor());
  accel::Logger logger({}, {.level = accel::LogLevel::info, .console = console});
  Progress bar(
      {.total = 10, .description = "train", .console = console, .clock = clock.function()});
  for (int i = 0; i < 10; ++i) {
    clock.now += 1s;
    bar.update();
    if (i % 4 == 1) logger.info("saved {}", i);
  }
  bar.close();
  logger.info("done");
  const auto& screen = terminal.screen();
  REQUIRE(screen.size() == 6);
  for (int i : {0, 1, 2})
    CHECK(
        screen[static_cast<std::size_t>(i)].ends_with("[info] saved " + std::to_string(4 * i + 1)));
  CHECK(screen[3].starts_with("train: 100%|"));
  CHECK(screen[4].ends_with("[info] done"));
  CHECK(screen[5].empty());
}

TEST_CASE("other streams write while the bar is away, even if they log meanwhile or throw") {
  PseudoTerminal terminal(90);
  const auto console = console_on(terminal.descriptor());
  accel::Logger logger({}, {.level = accel::LogLevel::info, .console = console});
  Progress bar({.total = 10, .console = console});
  console->interrupt([&] {
    [[maybe_unused]] const auto n = ::write(terminal.descriptor(), "by hand\n", 8);
    logger.info("logged");
  });
  CHECK_THROWS(console->interrupt([] { throw 1; }));
  const auto& screen = terminal.screen();
  REQUIRE(screen.size() == 3);
  CHECK(screen[0] == "by hand");
  CHECK(screen[1].ends_with("logged"));
  CHECK(screen[2].starts_with("  0%|"));
}

TEST_CASE("a bar inside another gives the place back") {
  PseudoTerminal terminal(90);
  Clock clock;
  const auto console = console_on(terminal.descriptor());
  Progress outer(
      {.total = 2, .description = "epochs", .console = console, .clock = clock.function()});
  {
    Progress inner(
        {.total = 5, .description = "steps", .console = console, .clock = clock.function()});
    inner.update(5);
  }
  clock.now += 1s;
  outer.update();
  const auto& screen = terminal.screen();
  REQUIRE(screen.size() == 2);
  CHECK(screen[0].starts_with("steps: 100%"));
  CHECK(screen[1].starts_with("epochs:  50%"));
}

TEST_CASE("a stream that nobody reads any more ends nothing") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::close(ends[0]);
  const auto handler = ::signal(SIGPIPE, SIG_IGN);
  const auto console = console_on(ends[1]);
  CHECK_NOTHROW(console->line("lost"));
  ::signal(SIGPIPE, handler);
  ::close(ends[1]);
}

TEST_CASE("text is cut into no other lines than it has") {
  accel_test::Pipe pipe;
  const auto console = console_on(pipe.descriptor());
  console->line("one");
  console->line("two\nthree\n");
  console->line("");
  CHECK(pipe.lines() == std::vector<std::string>{"one", "two", "three", ""});
}
