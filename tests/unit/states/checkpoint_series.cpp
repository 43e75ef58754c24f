// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Automatic names and rotation.

#include <accel/checkpoint/checkpoint_series.hpp>

#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <support/scratch_folder.hpp>

#include <filesystem>
#include <set>
#include <string>

#include <sys/stat.h>

namespace fs = std::filesystem;
using accel::CheckpointSeries;
using accel::StateFolder;
using accel::StateParts;
using accel_test::ScratchFolder;

namespace {

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

accel::SavedCheckpoint save(CheckpointSeries& series, int value = 0) {
  return series.save({}, [&](StateParts& parts) { parts.add_json("value", value); });
}

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("B19 thirteen saves with a limit of three leave 10, 11, 12") {
  const ScratchFolder root(accel_test::memory_folder());
  for (const char* foreign : {"checkpoint_best", "checkpoint_007x", "checkpoint_007", "notes"}) {
    fs::create_directory(root / foreign);
    accel::write_text(root / foreign / "keep", "x");
  }
  const Names foreign{"checkpoint_best", "checkpoint_007x", "checkpoint_007", "notes"};
  CheckpointSeries series(root.path(), 3);
  for (int round = 0; round < 13; ++round) {
    const auto saved = save(series, round);
    CHECK(saved.folder == root / ("checkpoint_" + std::to_string(round)));
    CHECK(saved.removed.size() == (round < 3 ? 0 : 1));
    CHECK(saved.warnings.empty());
  }
  auto expected = foreign;
  expected.insert({"checkpoint_10", "checkpoint_11", "checkpoint_12"});
  CHECK(names_in(root.path()) == expected);
  CHECK(accel::latest_complete(root.path()) == root / "checkpoint_12");

  SECTION("load, save again: number 13, nothing overwritten") {
    CheckpointSeries resumed(root.path(), 3);
    CHECK(resumed.run() != series.run());
    resumed.resume(StateFolder(root / "checkpoint_12"));
    CHECK(save(resumed, 13).folder == root / "checkpoint_13");
    expected.erase("checkpoint_10");
    expected.insert("checkpoint_13");
    CHECK(names_in(root.path()) == expected);
    CHECK(StateFolder(root / "checkpoint_12").json("value") == 12);
  }
  SECTION("loading an older one overwrites nothing either") {
    CheckpointSeries resumed(root.path(), 3);
    resumed.resume(StateFolder(root / "checkpoint_10"));
    CHECK(save(resumed, 13).folder == root / "checkpoint_13");
    CHECK(StateFolder(root / "checkpoint_11").json("value") == 11);
  }
  SECTION("a fresh run removes nothing of the old one") {
    CheckpointSeries fresh(root.path(), 1);
    save(fresh);
    save(fresh);
    expected.insert("checkpoint_14");
    CHECK(names_in(root.path()) == expected);
  }
}

TEST_CASE("B19 a foreign checkpoint_1000 never costs the new save") {
  const ScratchFolder root(accel_test::memory_folder());
  fs::create_directory(root / "checkpoint_1000");
  accel::write_text(root / "checkpoint_1000/model.safetensors", "of an older run");
  for (const int limit : {1, 3}) {
    CheckpointSeries series(root.path(), limit);
    fs::path newest;
    for (int round = 0; round < 5; ++round) {
      newest = save(series).folder;
      REQUIRE(fs::exists(newest));
      CHECK(accel::latest_complete(root.path()) == newest);
    }
  }
  CHECK(fs::exists(root / "checkpoint_1000/model.safetensors"));
  // One of the first run, three of the second.
  CHECK(names_in(root.path()).size() == 1 + 1 + 3);
}

TEST_CASE("B19 the old state goes only after the new one is whole") {
  const ScratchFolder root(accel_test::memory_folder());
  CheckpointSeries series(root.path(), 1);
  save(series, 1);
  CHECK_THROWS(series.save({}, [](StateParts& parts) {
    parts.add("model", [](accel::OutputFile&) { throw std::runtime_error("disk"); });
  }));
  CHECK(names_in(root.path()) == Names{"checkpoint_0"});
  series.save({}, [&](StateParts& parts) {
    parts.add("model",
              [&](accel::OutputFile&) { CHECK(fs::exists(root / "checkpoint_0/value.json")); });
  });
  CHECK(names_in(root.path()) == Names{"checkpoint_1"});
}

TEST_CASE("an interrupted removal is finished, and never taken for a state") {
  const ScratchFolder root(accel_test::memory_folder());
  CheckpointSeries series(root.path(), 2);
  save(series);
  save(series);
  fs::rename(root / "checkpoint_0", root / "checkpoint_0.removed");
  fs::create_directory(root / "mine.removed");
  CHECK(accel::latest_complete(root.path()) == root / "checkpoint_1");
  save(series);
  CHECK(names_in(root.path()) == Names{"checkpoint_1", "checkpoint_2", "mine.removed"});
}

TEST_CASE("damaged and interrupted states are passed over") {
  const ScratchFolder root(accel_test::memory_folder());
  CHECK(accel::latest_complete(root / "absent") == std::nullopt);
  CHECK(accel::latest_complete(root.path()) == std::nullopt);
  CheckpointSeries series(root.path());
  for (int round = 0; round < 4; ++round) {
    save(series);
  }
  fs::remove(root / "checkpoint_3/value.json");
  fs::remove(root / "checkpoint_2/accel_state.json");
  CHECK(accel::latest_complete(root.path()) == root / "checkpoint_1");
  CHECK(series.next() == root / "checkpoint_4");
}

TEST_CASE("only the spelling that a save gives is a number") {
  CHECK(accel::checkpoint_number("checkpoint_0") == 0);
  CHECK(accel::checkpoint_number("checkpoint_120") == 120);
  for (const char* name :
       {"checkpoint_", "checkpoint_-1", "checkpoint_+1", "checkpoint_01", "checkpoint_1.tmp-save",
        "checkpoint_1 ", "checkpoint_9223372036854775807", "checkpoint_99999999999999999999",
        "Checkpoint_1", "1"}) {
    INFO(name);
    CHECK(accel::checkpoint_number(name) == std::nullopt);
  }
}

TEST_CASE("a limit below one is refused") {
  CHECK_THROWS_AS(CheckpointSeries("x", 0), accel::Error);
  CHECK_THROWS_AS(CheckpointSeries("x", -1), accel::Error);
}
