// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/progress.hpp>
#include <catch2/catch_test_macros.hpp>
#include <support/pseudo_terminal.hpp>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using accel::Console;
using accel::Progress;
using accel::ProgressOptions;
using accel_test::Pipe;
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

std::shared_ptr<Console> console_on(int descriptor, const char* locale = "C.UTF-8",
                                    const char* terminal = "xterm") {
  ::setenv("LC_ALL", locale, 1);
  ::setenv("TERM", terminal, 1);
  return std::make_shared<Console>(descriptor);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a bar shows count, time, rate and values, and stays when it is done") {
  PseudoTerminal terminal(100);
  Clock clock;
  Progress bar({.total = 40,
                .description = "epoch 1",
                .console = console_on(terminal.descriptor()),
                .clock = clock.function()});
  REQUIRE(terminal.screen().size() == 1);
  CHECK(terminal.screen()[0] ==
        "epoch 1:   0%|" + std::string(40, ' ') + "| 0/40 [00:00<?, ? step/s]");

  for (int i = 0; i < 15; ++i) {
    clock.now += 500ms;
    bar.set_postfix({{"loss", .41267}, {"n", 3}, {"note", "ok"}});
    bar.update();
  }
  CHECK(terminal.screen()[0].starts_with("epoch 1:  37%|██████"));
  clock.now += 500ms;
  bar.update();
  // 16 of 40 is 9.6 of 24 columns; two a second; 12 seconds to go.
  CHECK(terminal.screen() ==
        std::vector<std::string>{"epoch 1:  40%|█████████▌              | 16/40 "
                                 "[00:08<00:12, 2.00 step/s, loss=0.4127, n=3, note=ok]"});
  clock.now += 500ms;
  bar.set_description("epoch 2");
  CHECK(terminal.screen()[0].starts_with("epoch 2:  40%|"));
  bar.update(24);
  bar.close();
  CHECK(terminal.screen().size() == 2);
  CHECK(contains(terminal.screen()[0], "100%|███"));
  CHECK(contains(terminal.screen()[0], "40/40 [00:08<00:00, 4.71 step/s"));
  CHECK(terminal.screen()[1].empty());
}

TEST_CASE("a bar is redrawn at most every tenth of a second") {
  PseudoTerminal terminal(80);
  Clock clock;
  Progress bar(
      {.total = 100000, .console = console_on(terminal.descriptor()), .clock = clock.function()});
  terminal.redraws();
  for (int i = 0; i < 10000; ++i) {
    clock.now += 100us;  // one second in all
    bar.update();
    if (i % 100 == 0) terminal.screen();
  }
  CHECK(terminal.redraws() == 10);
}

TEST_CASE("a bar reaches its end without waiting for the next redraw") {
  PseudoTerminal terminal(80);
  Clock clock;
  Progress bar(
      {.total = 3, .console = console_on(terminal.descriptor()), .clock = clock.function()});
  bar.update(3);
  CHECK(contains(terminal.screen()[0], "100%"));
}

TEST_CASE("eighths of a block tell small steps apart") {
  PseudoTerminal terminal(100);
  Clock clock;
  Progress bar(
      {.total = 320, .console = console_on(terminal.descriptor()), .clock = clock.function()});
  for (const std::string block : {"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"}) {
    clock.now += 1s;
    bar.update(1);
    CHECK(contains(terminal.screen()[0], "|" + block + "   "));
  }
}

TEST_CASE("a bar fits every width, and follows the window") {
  PseudoTerminal terminal(200);
  Clock clock;
  Progress bar({.total = 1000,
                .description = "日本語 training",
                .console = console_on(terminal.descriptor()),
                .clock = clock.function()});
  bar.set_postfix({{"loss", 1.25}, {"accuracy", .5}});
  for (int columns = 200; columns >= 2; --columns) {
    terminal.resize(columns);
    clock.now += 1s;
    bar.update();
    REQUIRE_NOTHROW(terminal.screen());  // the terminal throws if a line would wrap
    REQUIRE(terminal.screen().size() == 1);
  }
  terminal.resize(60);
  clock.now += 1s;
  bar.update();
  CHECK(terminal.screen()[0].ends_with("…"));
}

TEST_CASE("a terminal that shows ASCII gets ASCII") {
  PseudoTerminal terminal(90);
  Clock clock;
  Progress bar(
      {.total = 10, .console = console_on(terminal.descriptor(), "C"), .clock = clock.function()});
  clock.now += 1s;
  bar.update(5);
  for (const char c : terminal.screen()[0]) CHECK(static_cast<unsigned char>(c) < 0x80);
  CHECK(contains(terminal.screen()[0], "|####################                    |"));
}

TEST_CASE("without a total there is no bar, and with a wrong one no nonsense") {
  PseudoTerminal terminal(90);
  Clock clock;
  const auto console = console_on(terminal.descriptor());
  {
    Progress bar({.unit = "sample", .console = console, .clock = clock.function()});
    clock.now += 2s;
    bar.update(25000);
    CHECK(terminal.screen()[0] == "25000 sample [00:02, 12.5k sample/s]");
  }
  {
    Progress bar({.total = 2, .console = console, .clock = clock.function()});
    clock.now += 1s;
    bar.update(5);
    CHECK(contains(terminal.screen()[1], "100%|"));
    CHECK(contains(terminal.screen()[1], "5/2 [00:01<00:00"));
  }
  {
    Progress bar({.total = 0, .console = console, .clock = clock.function()});
  }
  CHECK(contains(terminal.screen()[2], "0/0 [00:00<00:00, ? step/s]"));
}

TEST_CASE("a resumed bar counts from where it was, and its rate does not") {
  PseudoTerminal terminal(90);
  Clock clock;
  Progress bar({.total = 100,
                .initial = 90,
                .console = console_on(terminal.descriptor()),
                .clock = clock.function()});
  clock.now += 10s;
  bar.update(5);
  CHECK(contains(terminal.screen()[0], "95/100 [00:10<00:10, 2.00 s/step"));
}

TEST_CASE("the rate leans to the last seconds") {
  PseudoTerminal terminal(90);
  Clock clock;
  Progress bar(
      {.total = 10000, .console = console_on(terminal.descriptor()), .clock = clock.function()});
  for (int i = 0; i < 100; ++i) {
    clock.now += 1s;
    bar.update(i < 50 ? 1 : 10);
  }
  CHECK(contains(terminal.screen()[0], "10.0 step/s"));
  bar.close();
  CHECK(contains(terminal.screen()[0], "5.50 step/s"));
}

TEST_CASE("on a pipe there are plain lines, one every few seconds and the last") {
  Pipe pipe;
  Clock clock;
  Progress bar({.total = 100,
                .description = "epoch 1",
                .memory = true,
                .console = console_on(pipe.descriptor()),
                .clock = clock.function()});
  for (int i = 0; i < 100; ++i) {
    clock.now += 120ms;  // twelve seconds in all
    bar.set_postfix({{"loss", .5}});
    bar.update();
  }
  bar.close();
  bar.close();
  const auto lines = pipe.lines();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].starts_with(
      "epoch 1: 42/100 step (42%), 00:05 gone, 00:06 to go, 8.33 step/s, loss=0.5, "));
  CHECK(lines[2].starts_with(
      "epoch 1: 100/100 step (100%), 00:12 gone, 00:00 to go, 8.33 step/s, loss=0.5, "));
  CHECK(lines[2].ends_with("MB"));
  for (const auto& line : lines) CHECK(!contains(line, "\033"));
}

TEST_CASE("a dumb terminal is written to like a pipe") {
  PseudoTerminal terminal(80);
  {
    Progress bar({.total = 1, .console = console_on(terminal.descriptor(), "C.UTF-8", "dumb")});
  }
  CHECK(terminal.redraws() == 0);
  CHECK(terminal.screen()[0].starts_with("0/1 step"));
}

TEST_CASE("a bar that is not enabled, or should not stay, leaves nothing") {
  Pipe pipe;
  PseudoTerminal terminal(80);
  {
    Progress off({.total = 5, .enabled = false, .console = console_on(pipe.descriptor())});
    off.set_postfix({{"loss", 1}});
    off.update(5);
    Progress gone({.total = 5, .leave = false, .console = console_on(terminal.descriptor())});
    gone.update(5);
  }
  CHECK(pipe.lines().empty());
  CHECK(terminal.screen() == std::vector<std::string>{""});
}

TEST_CASE("text that would move the cursor is made harmless") {
  PseudoTerminal terminal(120);
  Clock clock;
  Progress bar({.total = 5,
                .description = "a\nb\033[2J",
                .console = console_on(terminal.descriptor()),
                .clock = clock.function()});
  clock.now += 1s;
  bar.set_postfix({{"note", "two\r\nlines \xff"}});
  bar.update();
  CHECK_NOTHROW(terminal.screen());
  REQUIRE(terminal.screen().size() == 1);
  CHECK(terminal.screen()[0].starts_with("a b [2J:"));
  CHECK(contains(terminal.screen()[0], "note=two  lines \xEF\xBF\xBD]"));
}

TEST_CASE("threads may share a bar") {
  Pipe pipe;
  Progress bar({.console = console_on(pipe.descriptor())});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) bar.update();
    });
  for (auto& each : threads) each.join();
  CHECK(bar.count() == 4000);
}

TEST_CASE("long times are told in hours and days") {
  PseudoTerminal terminal(120);
  Clock clock;
  Progress bar(
      {.total = 1000, .console = console_on(terminal.descriptor()), .clock = clock.function()});
  clock.now += 2h + 3min + 4s;
  bar.update(1);
  CHECK(contains(terminal.screen()[0], "[2:03:04<85d 09:03:36, 7384 s/step]"));
}
