// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/json_lines.hpp>
#include <accel/detail/error.hpp>
#include <catch2/catch_test_macros.hpp>
#include <support/scratch_folder.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using accel::Json;
using accel::JsonLines;
using accel_test::ScratchFolder;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Parses as strictly as JSON is defined: nlohmann's reader knows no NaN, no comments and no
// trailing commas.
std::vector<Json> lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<Json> result;
  for (std::string line; std::getline(file, line);) result.push_back(Json::parse(line));
  return result;
}

}  // namespace

TEST_CASE("B42 a run that is killed after step 1 has both records on disk") {
  const ScratchFolder folder;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    JsonLines tracker(folder / "run");
    tracker.log({{"loss", 1.5}}, 0);
    tracker.log({{"loss", 1.25}}, 1);
    [[maybe_unused]] const auto told = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char told = 0;
  REQUIRE(::read(ready[0], &told, 1) == 1);
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  ::close(ready[0]);

  const auto records = lines(folder / "run/metrics.jsonl");
  REQUIRE(records.size() == 2);
  CHECK(records[0]["loss"] == 1.5);
  CHECK(records[1]["step"] == 1);
}

TEST_CASE("B42 values that are not finite are strings that a strict reader accepts") {
  const ScratchFolder folder;
  JsonLines tracker(folder.path());
  tracker.log({{"a", not_a_number},
               {"b", infinity},
               {"c", -infinity},
               {"d", {{"e", -not_a_number}}},
               {"f", 1e308}},
              0);
  tracker.store_init_configuration({{"clip", infinity}, {"betas", {.9, not_a_number}}});
  CHECK(content(tracker.path())
            .find(R"("a":"NaN","b":"Infinity","c":"-Infinity","d/e":"NaN","f":1e+308)") !=
        std::string::npos);
  REQUIRE(lines(tracker.path()).size() == 1);
  CHECK(Json::parse(content(folder / "config.json")) ==
        Json{{"clip", "Infinity"}, {"betas", {.9, "NaN"}}});
}

TEST_CASE("B42 the configuration is stored once, and an earlier one is kept") {
  const ScratchFolder folder;
  for (const double rate : {.1, .1, .2, .2}) {
    JsonLines tracker(folder.path());
    tracker.store_init_configuration({{"lr", rate}, {"layers", {64, 64}}});
    tracker.log({{"loss", 1}}, 0);
  }
  CHECK(Json::parse(content(folder / "config.json")) == Json{{"lr", .2}, {"layers", {64, 64}}});
  CHECK(Json::parse(content(folder / "config-1.json"))["lr"] == .1);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder.path()))
    ++files;
  CHECK(files == 3);
  CHECK(content(folder / "metrics.jsonl").find("lr") == std::string::npos);
}

TEST_CASE("a line has step and time first, and moves values of those names aside") {
  const ScratchFolder folder;
  JsonLines tracker(folder.path());
  tracker.log({{"time", 7}, {"step", 8}, {"step_", 9}, {"loss", .1}}, 42);
  const auto record = lines(tracker.path()).at(0);
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"step", "time", "time_", "step_", "step__", "loss"});
  CHECK(record["step"] == 42);
  CHECK(record["time_"] == 7);
  CHECK(record["step_"] == 8);
  CHECK(record["step__"] == 9);
  CHECK(record["time"].get<double>() > 1.6e9);
  CHECK(content(tracker.path()).find("\"loss\":0.1}") !=
        std::string::npos);  // the shortest digits that read back equal
}

TEST_CASE("a run that resumes appends, after a last line that was cut off is removed") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.jsonl";
  SECTION("cut off in the middle") { std::ofstream(path) << "{\"step\":0}\n{\"step\":1,\"lo"; }
  SECTION("whole, but without its end") { std::ofstream(path) << "{\"step\":0}"; }
  SECTION("longer than one block") {
    std::ofstream(path) << "{\"step\":0}\n{\"note\":\"" << std::string(10000, 'x');
  }
  JsonLines(folder.path()).log({{"loss", 1}}, 1);
  const auto records = lines(path);
  REQUIRE(records.size() == 2);
  CHECK(records[0]["step"] == 0);
  CHECK(records[1]["step"] == 1);
}

TEST_CASE("a file that holds nothing but a broken line is started anew") {
  const ScratchFolder folder;
  std::ofstream(folder / "metrics.jsonl") << "{\"ste";
  JsonLines(folder.path()).log({{"loss", 1}}, 1);
  CHECK(lines(folder / "metrics.jsonl").size() == 1);
}

TEST_CASE("a disk that is full is an error that names the file") {
  const ScratchFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "metrics.jsonl");
  JsonLines tracker(folder.path());
  try {
    tracker.log({{"loss", 1}}, 0);
    FAIL("no error");
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::data);
    CHECK(std::string(error.what()).find("metrics.jsonl") != std::string::npos);
    CHECK(std::string(error.what()).find("No space left") != std::string::npos);
  }
}

TEST_CASE("a record that does not fit leaves the file as it was") {
  const ScratchFolder folder;
  JsonLines tracker(folder.path());
  tracker.log({{"loss", 1}}, 0);
  const auto before = content(tracker.path());

  // A limit on the size of files stands in for a disk that fills in the middle of a write.
  struct rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit tight{before.size() + 20, old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
  bool failed = false;
  try {
    tracker.log({{"note", std::string(100, 'x')}}, 1);
  } catch (const accel::Error&) {
    failed = true;
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, handler);
  CHECK(failed);
  CHECK(content(tracker.path()) == before);
  tracker.log({{"loss", 2}}, 2);
  CHECK(lines(tracker.path()).size() == 2);
}

TEST_CASE("a folder that cannot be made is an error that names it") {
  const ScratchFolder folder;
  std::ofstream(folder / "taken") << "a file";
  CHECK_THROWS_AS(JsonLines(folder / "taken/run"), accel::Error);
}

TEST_CASE("a record after finish is an error, not lost") {
  const ScratchFolder folder;
  JsonLines tracker(folder.path());
  tracker.finish();
  tracker.finish();
  CHECK_THROWS_AS(tracker.log({{"loss", 1}}, 0), accel::Error);
}
