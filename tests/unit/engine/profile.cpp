// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/scratch_folder.hpp"

#include <accel/accel.hpp>

#include <ATen/record_function.h>
#include <catch2/catch_all.hpp>
#include <nlohmann/json.hpp>

#include <fstream>
#include <set>

using accel::Profile;
using accel::ProfileAction;
using Catch::Matchers::ContainsSubstring;

namespace {

void work(int index) {
  RECORD_USER_SCOPE("my range " + std::to_string(index));
  auto x = torch::ones({4, 4}).requires_grad_();
  x.mm(x).sum().backward();
}

std::set<std::string> names_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  const auto trace = nlohmann::json::parse(stream);
  std::set<std::string> names;
  for (const auto& event : trace.at("traceEvents"))
    names.insert(event.at("name").get<std::string>());
  return names;
}

}  // namespace

TEST_CASE("a profile leaves a Chrome trace with operators, backward and ranges of the user") {
  const accel_test::ScratchFolder folder;
  accel::Accelerator<accel::single> accelerator;
  {
    auto profile = accelerator.profile({.output_trace_dir = folder.path() / "traces"});
    work(1);
  }
  work(2);
  const auto names = names_in(folder.path() / "traces" / "profile_0.json");
  CHECK(names.contains("my range 1"));
  CHECK(names.contains("aten::mm"));
  CHECK(names.contains("MmBackward0"));
  CHECK_FALSE(names.contains("my range 2"));
}

TEST_CASE("each rank has a trace of its own") {
  const accel_test::ScratchFolder folder;
  // One profile a process at a time: the ranks come one after the other.
  for (int rank = 0; rank < 2; ++rank) {
    const Profile profile({.output_trace_dir = folder.path()}, rank);
    work(10 + rank);
  }
  for (int rank = 0; rank < 2; ++rank) {
    const auto names = names_in(folder.path() / fmt::format("profile_{}.json", rank));
    CHECK(names.contains(fmt::format("my range {}", 10 + rank)));
    CHECK_FALSE(names.contains(fmt::format("my range {}", 11 - rank)));
  }
}

TEST_CASE("a schedule waits, warms up, records and repeats, a file a cycle") {
  const accel_test::ScratchFolder folder;
  std::vector<std::filesystem::path> ready;
  {
    Profile profile({.output_trace_dir = folder.path(),
                     .schedule = {.wait = 1, .warmup = 1, .active = 2, .repeat = 2},
                     .on_trace_ready = [&](const auto& file) { ready.push_back(file); }},
                    3);
    for (int step = 0; step < 11; ++step) {
      work(step);
      profile.step();
    }
    CHECK(profile.traces() == ready);
  }
  REQUIRE(ready == std::vector<std::filesystem::path>{folder.path() / "profile_3.json",
                                                      folder.path() / "profile_3_1.json"});
  const auto first = names_in(ready[0]), second = names_in(ready[1]);
  for (int step = 0; step < 11; ++step) {
    CAPTURE(step);
    const auto range = "my range " + std::to_string(step);
    const auto shown = "ProfilerStep#" + std::to_string(step);
    CHECK(first.contains(range) == (step == 2 || step == 3));
    CHECK(first.contains(shown) == (step == 2 || step == 3));
    CHECK(second.contains(range) == (step == 6 || step == 7));
  }
}

TEST_CASE("the actions of torch.profiler.schedule") {
  // schedule(wait=2, warmup=1, active=2, repeat=2, skip_first=1): [str(f(i)) for i in range(12)]
  const accel::ProfileSchedule schedule{
      .wait = 2, .warmup = 1, .active = 2, .repeat = 2, .skip_first = 1};
  std::string actions;
  for (int step = 0; step < 13; ++step) actions += ".wrS"[static_cast<int>(schedule.action(step))];
  CHECK(actions == "...wrS..wrS..");
}

TEST_CASE("a schedule that records nothing, a second profile and a folder that is none are told") {
  const accel_test::ScratchFolder folder;
  CHECK_THROWS_WITH(Profile({.schedule = {.wait = 1}}), ContainsSubstring("has active 0"));
  CHECK_THROWS_WITH(Profile({.schedule = {.wait = -1, .active = 1}}), ContainsSubstring("wait -1"));
  const auto file = folder.path() / "file";
  std::ofstream(file) << "x";
  Profile profile({.output_trace_dir = file});
  CHECK_THROWS_WITH(Profile(accel::ProfileOptions{}), ContainsSubstring("one profile at a time"));
  CHECK_THROWS_WITH(profile.stop(), ContainsSubstring("could not be written"));
  profile.stop();  // it has stopped
  Profile after({.output_trace_dir = folder.path()});
}
