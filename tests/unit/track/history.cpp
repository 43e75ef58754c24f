// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/history.hpp>
#include <accel/detail/error.hpp>
#include <accel/track/json_lines.hpp>
#include <catch2/catch_test_macros.hpp>
#include <support/scratch_folder.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

using accel::read_series;
using accel_test::ScratchFolder;

TEST_CASE("a series is read back with its steps, and other names do not disturb it") {
  const ScratchFolder folder;
  accel::JsonLines tracker(folder.path());
  tracker.log({{"loss", 3.5}, {"note", "x"}}, 0);
  tracker.log({{"eval", {{"acc", .5}}}}, 0);
  tracker.log({{"loss", 2.5}, {"done", true}}, 10);
  const auto loss = read_series(tracker.path(), "loss");
  CHECK(loss.label == "loss");
  CHECK(loss.x == std::vector<double>{0, 10});
  CHECK(loss.y == std::vector<double>{3.5, 2.5});
  CHECK(read_series(tracker.path(), "eval/acc").y == std::vector<double>{.5});
  CHECK(read_series(tracker.path(), "done").y == std::vector<double>{1});
  CHECK(read_series(tracker.path(), "note").y.empty());
  CHECK(read_series(tracker.path(), "nothing").x.empty());
}

TEST_CASE("B42 values of a resumed run replace those from its step on, name by name") {
  const ScratchFolder folder;
  accel::JsonLines tracker(folder.path());
  for (const int step : {0, 1, 2, 3}) tracker.log({{"loss", step}}, step);
  tracker.log({{"acc", .5}}, 1);  // an evaluation that reports late takes nothing from the loss
  for (const int step : {2, 3, 4}) tracker.log({{"loss", 10 * step}}, step);
  const auto loss = read_series(tracker.path(), "loss");
  CHECK(loss.x == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(loss.y == std::vector<double>{0, 1, 20, 30, 40});
  CHECK(read_series(tracker.path(), "acc").x == std::vector<double>{1});
}

TEST_CASE("values that are not finite come back as they were") {
  const ScratchFolder folder;
  accel::JsonLines tracker(folder.path());
  constexpr double inf = std::numeric_limits<double>::infinity();
  tracker.log({{"x", std::nan("")}}, 0);
  tracker.log({{"x", inf}}, 1);
  tracker.log({{"x", -inf}}, 2);
  const auto series = read_series(tracker.path(), "x");
  REQUIRE(series.y.size() == 3);
  CHECK(std::isnan(series.y[0]));
  CHECK(series.y[1] == inf);
  CHECK(series.y[2] == -inf);
}

TEST_CASE(
    "a line that is no record is an error with its number, unless it is the unfinished last one") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.jsonl";
  std::ofstream(path) << "{\"step\":0,\"x\":1}\n{\"step\":1,\"x";
  CHECK(read_series(path, "x").y == std::vector<double>{1});
  std::ofstream(path) << "{\"step\":0,\"x\":1}\n[1]\n{\"step\":1,\"x\":2}\n";
  try {
    (void)read_series(path, "x");
    FAIL("no error");
  } catch (const accel::Error& error) {
    CHECK(std::string(error.what()).find("line 2") != std::string::npos);
  }
  CHECK_THROWS_AS(read_series(folder / "missing.jsonl", "x"), accel::Error);
}
