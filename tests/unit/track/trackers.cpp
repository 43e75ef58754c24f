// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/trackers.hpp>
#include <accel/detail/error.hpp>
#include <accel/track/json_lines.hpp>
#include <accel/track/tensorboard.hpp>
#include <catch2/catch_test_macros.hpp>
#include <support/scratch_folder.hpp>

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using accel::AnyTracker;
using accel::Json;
using accel::Record;
using accel::Trackers;
using accel_test::ScratchFolder;

namespace {

// A tracker that a user would write: it has the four members, and nothing else.
struct Memory {
  std::string called = "memory";
  std::vector<std::string> calls;
  bool broken = false;

  std::string name() const { return called; }
  void store_init_configuration(const Json& config) { calls.push_back("config " + config.dump()); }
  void log(const Record& record, std::int64_t step) {
    calls.push_back(std::to_string(step) + " " + record.values().dump());
    if (broken) throw std::runtime_error("the disk is full");
  }
  void finish() { calls.push_back("finish"); }
};

// One requirement of the concept less each.
struct WithoutName : Memory {
  void name() const = delete;
};
struct WithoutConfiguration : Memory {
  void store_init_configuration(const Json&) = delete;
};
struct WithoutLog : Memory {
  void log(const Record&, std::int64_t) = delete;
};
struct WithoutFinish : Memory {
  void finish() = delete;
};
static_assert(accel::Tracker<Memory>);
static_assert(accel::Tracker<accel::JsonLines>);
static_assert(accel::Tracker<accel::TensorBoard>);
static_assert(accel::Tracker<AnyTracker>);
static_assert(!accel::Tracker<WithoutName>);
static_assert(!accel::Tracker<WithoutConfiguration>);
static_assert(!accel::Tracker<WithoutLog>);
static_assert(!accel::Tracker<WithoutFinish>);

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const accel::Error& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("B42 two ranks log, one file is written, and what is left out is said once") {
  const ScratchFolder folder;
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& sentence) { warnings.push_back(sentence); };
  Trackers main(true, {"json_lines"}, folder.path(), warn);
  Trackers other(false, {"json_lines"}, folder.path(), warn);
  for (Trackers* each : {&other, &main}) {
    each->init_trackers("run", {{"lr", .1}});
    for (const int step : {0, 1})
      each->log({{"loss", 1.5}, {"eval", {{"acc", .5}, {"n", 3}}}, {"note", "x"}, {"bad", {1, 2}}},
                step);
  }
  main.end_training();
  other.end_training();

  const auto lines = lines_of(folder / "run/metrics.jsonl");
  REQUIRE(lines.size() == 2);
  for (std::size_t step = 0; step < 2; ++step) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : lines[step].items()) keys.push_back(key);
    CHECK(keys == std::vector<std::string>{"step", "time", "loss", "eval/acc", "eval/n", "note"});
    CHECK(lines[step]["step"] == step);
  }
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "\"bad\""));

  std::size_t files = 0;
  for (const auto& each : std::filesystem::recursive_directory_iterator(folder.path()))
    files += each.is_regular_file();
  CHECK(files == 2);  // metrics.jsonl and config.json
}

TEST_CASE("B42 a step lower than the last is kept, and warned of once") {
  std::vector<std::string> warnings;
  const auto memory = std::make_shared<Memory>();
  Trackers trackers(true, {memory}, {},
                    [&](const std::string& sentence) { warnings.push_back(sentence); });
  trackers.init_trackers("run");
  for (const int step : {5, 3, 4, 2}) trackers.log({{"x", step}}, step);
  CHECK(memory->calls ==
        std::vector<std::string>{R"(5 {"x":5})", R"(3 {"x":3})", R"(4 {"x":4})", R"(2 {"x":2})"});
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "step 3 comes after step 5"));
}

TEST_CASE("without a step, a record takes the one after the last") {
  const auto memory = std::make_shared<Memory>();
  Trackers trackers(true, {memory});
  trackers.init_trackers("run");
  trackers.log({{"x", 1}});
  trackers.log({{"x", 2}});
  trackers.log({{"x", 3}}, 10);
  trackers.log({{"x", 4}});
  CHECK(memory->calls ==
        std::vector<std::string>{R"(0 {"x":1})", R"(1 {"x":2})", R"(10 {"x":3})", R"(11 {"x":4})"});
}

TEST_CASE("a user's tracker is configured, fed and finished once, on the main process only") {
  for (const bool is_main : {true, false}) {
    const auto memory = std::make_shared<Memory>();
    {
      Trackers trackers(is_main, {memory});
      trackers.init_trackers("run", {{"lr", .1}});
      trackers.log({{"loss", 2}});
      trackers.end_training();
      trackers.end_training();
    }
    CHECK(memory->calls ==
          (is_main ? std::vector<std::string>{R"(config {"lr":0.1})", R"(0 {"loss":2})", "finish"}
                   : std::vector<std::string>{}));
  }
}

TEST_CASE("trackers that are destroyed without end_training are finished") {
  const auto memory = std::make_shared<Memory>();
  {
    Trackers(true, {memory}).init_trackers("run");
  }
  CHECK(memory->calls == std::vector<std::string>{"finish"});
}

TEST_CASE("get_tracker gives the object on the main process, and a blank one elsewhere") {
  const auto memory = std::make_shared<Memory>();
  const ScratchFolder folder;
  Trackers main(true, {memory, "tensorboard"}, folder.path());
  Trackers other(false, {memory, "tensorboard"}, folder.path());
  main.init_trackers("run");
  other.init_trackers("run");

  CHECK(main.get_tracker("memory").target<Memory>() == memory.get());
  CHECK(main.get_tracker("memory").target<accel::TensorBoard>() == nullptr);
  CHECK(main.get_tracker("tensorboard").target<accel::TensorBoard>()->path().parent_path() ==
        folder / "run");
  AnyTracker blank = other.get_tracker("memory");
  CHECK(!blank);
  CHECK(blank.target<Memory>() == nullptr);
  blank.log({{"x", 1}}, 0);
  CHECK(memory->calls.empty());
  for (Trackers* each : {&main, &other})
    CHECK(message_of([&] { (void)each->get_tracker("wandb"); }) ==
          "get_tracker(\"wandb\"): log_with has memory, tensorboard");
}

TEST_CASE("an error of one tracker comes after the others have the record") {
  const auto broken = std::make_shared<Memory>();
  broken->called = "broken";
  broken->broken = true;
  const auto memory = std::make_shared<Memory>();
  Trackers trackers(true, {broken, memory});
  trackers.init_trackers("run");
  CHECK_THROWS_AS(trackers.log({{"x", 1}}), std::runtime_error);
  CHECK(memory->calls.size() == 1);
}

TEST_CASE("all stands for every tracker of the library, each once") {
  const ScratchFolder folder;
  Trackers trackers(true, {"tensorboard", "all", Memory{}}, folder.path());
  trackers.init_trackers("");
  CHECK(trackers.get_tracker("json_lines"));
  CHECK(trackers.get_tracker("tensorboard"));
  CHECK(trackers.get_tracker("memory"));
  CHECK(std::filesystem::exists(folder / "metrics.jsonl"));
}

TEST_CASE("a run can follow another") {
  const ScratchFolder folder;
  Trackers trackers(true, {"json_lines"}, folder.path());
  for (const char* run : {"a", "b"}) {
    trackers.init_trackers(run);
    trackers.log({{"x", 1}});
    trackers.end_training();
  }
  CHECK(lines_of(folder / "a/metrics.jsonl").size() == 1);
  CHECK(lines_of(folder / "b/metrics.jsonl")[0]["step"] == 0);
}

TEST_CASE("mistakes with trackers are errors that say what to do, on every rank") {
  const ScratchFolder folder;
  for (const bool is_main : {true, false}) {
    CHECK(contains(message_of([&] { Trackers(is_main, {"wandb"}, folder.path()); }),
                   "json_lines and tensorboard"));
    CHECK(contains(message_of([&] { Trackers(is_main, {"tensorboard"}); }), "set project_dir"));
    CHECK(contains(message_of([&] { Trackers(is_main, {Memory{}, Memory{}}); }),
                   "two trackers named \"memory\""));
    Trackers trackers(is_main, {"json_lines"}, folder.path());
    CHECK(contains(message_of([&] { trackers.log({{"x", 1}}); }), "call init_trackers first"));
    trackers.init_trackers("run");
    CHECK(
        contains(message_of([&] { trackers.init_trackers("run"); }), "call end_training() first"));
  }
  Trackers none(true, {});
  none.log({{"x", 1}});  // nobody asked for a record: nothing to complain about
}
