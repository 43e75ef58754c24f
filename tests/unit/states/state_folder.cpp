// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A state is whole or not there: parts and manifest, faults of one rank, interruption at each step.

#include <accel/checkpoint/state_folder.hpp>

#include <accel/checkpoint/checkpoint_series.hpp>
#include <accel/checkpoint/publish.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <support/forked_ranks.hpp>
#include <support/scratch_folder.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

namespace fs = std::filesystem;
using accel::SaveGroup;
using accel::StateFolder;
using accel::StateParts;
using accel::write_state_folder;
using accel_test::RankEnd;
using accel_test::run_two_ranks;
using accel_test::ScratchFolder;
using Catch::Matchers::ContainsSubstring;

namespace {

accel::StateParts::Writer text(std::string content) {
  return [content = std::move(content)](accel::OutputFile& file) { file.write(content); };
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const accel::Error& error) {
    return error.what();
  }
  return "";
}

// What two ranks save in these cases: the common parts from rank 0, a part of its own from each.
void fill_as(int rank, const std::string& content, StateParts& parts) {
  if (rank == 0) {
    parts.add("model.safetensors", text("model " + content));
    parts.add("optimizer.safetensors", text("optimizer " + content));
  }
  parts.add("random_states_" + std::to_string(rank) + ".safetensors", text("random " + content));
}

std::array<RankEnd, 2> save_by_two(const fs::path& folder, const std::string& content,
                                   const std::function<void(int, StateParts&)>& also = {}) {
  return run_two_ranks([&](int rank, const auto& all_agree) {
    write_state_folder(folder, SaveGroup{rank, 2, all_agree}, [&](StateParts& parts) {
      fill_as(rank, content, parts);
      if (also) {
        also(rank, parts);
      }
    });
  });
}

}  // namespace

TEST_CASE("a state comes back as it was written") {
  const ScratchFolder scratch;
  write_state_folder(
      scratch / "a/b/state", {},
      [](StateParts& parts) {
        parts.add("model.safetensors", text("bytes"));
        parts.add_json("scheduler", {{"last_epoch", 7}, {"lr", 0.1}});
      },
      "run-1");
  CHECK(names_in(scratch / "a/b") == std::set<std::string>{"state"});
  const StateFolder state(scratch / "a/b/state/");
  CHECK(state.ranks() == 1);
  CHECK(state.run() == "run-1");
  CHECK(accel::read_text(state.file("model.safetensors")) == "bytes");
  CHECK(state.json("scheduler") == nlohmann::json{{"last_epoch", 7}, {"lr", 0.1}});
  CHECK(state.contains("scheduler.json"));
  CHECK_FALSE(state.contains("scaler.json"));
  CHECK_THAT(
      error_of([&] { static_cast<void>(state.json("scaler")); }),
      ContainsSubstring("has no part scaler.json; it has model.safetensors, scheduler.json"));
}

TEST_CASE("a fault of the caller is named before anything is written") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto failing = [&](const std::function<void(StateParts&)>& fill) {
    return error_of([&] { write_state_folder(scratch / "state", {}, fill); });
  };
  CHECK_THAT(failing([](StateParts& parts) { parts.add("../x", text("")); }),
             ContainsSubstring("'../x'"));
  CHECK_THAT(failing([](StateParts& parts) { parts.add(accel::state_manifest, text("")); }),
             ContainsSubstring("cannot name a part"));
  CHECK_THAT(failing([](StateParts& parts) {
               parts.add("a.json", text(""));
               parts.add_json("a", 1);
             }),
             ContainsSubstring("a.json was added twice"));
  const double infinite = std::numeric_limits<double>::infinity();
  CHECK_THAT(
      failing([&](StateParts& parts) { parts.add_json("scheduler", {{"best", {1.0, infinite}}}); }),
      ContainsSubstring("scheduler.json: /best/1 is inf"));
  CHECK_THAT(failing([](StateParts& parts) { parts.add_json("scheduler", "\xff"); }),
             ContainsSubstring("scheduler.json"));
  CHECK_THAT(
      error_of([&] { write_state_folder(scratch / "s", SaveGroup{0, 2, {}}, [](auto&) {}); }),
      ContainsSubstring("all_agree"));
  CHECK_THAT(error_of([&] { write_state_folder("/", {}, [](auto&) {}); }),
             ContainsSubstring("folder below"));
  CHECK(names_in(scratch.path()).empty());
}

TEST_CASE("a damaged state is refused and the part is named") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto folder = scratch / "state";
  const auto write = [&] {
    write_state_folder(folder, {}, [](StateParts& parts) {
      parts.add("model.safetensors", text("0123456789"));
      parts.add("optimizer.safetensors", text("0123456789"));
    });
  };
  const auto refusal = [&] { return error_of([&] { StateFolder state(folder); }); };
  write();
  fs::remove(folder / "optimizer.safetensors");
  CHECK_THAT(refusal(), ContainsSubstring("optimizer.safetensors is missing"));
  write();
  fs::resize_file(folder / "model.safetensors", 4);
  CHECK_THAT(refusal(), ContainsSubstring("model.safetensors has 4 bytes instead of 10"));
  write();
  CHECK(refusal().empty());
  fs::remove(folder / accel::state_manifest);
  CHECK_THAT(refusal(), ContainsSubstring("it has no accel_state.json"));
  for (const char* manifest :
       {"", "{", "[]", R"({"format":1})", R"({"format":2})",
        R"({"format":1,"complete":true,"ranks":1,"run":"","parts":{"../../x":1}})",
        R"({"format":1,"complete":true,"ranks":1,"run":"","parts":{"model.safetensors":"big"}})",
        R"({"format":1,"complete":true,"ranks":1,"run":"","parts":{"model.safetensors":10.5}})",
        R"({"format":1,"complete":true,"ranks":-1,"run":"","parts":{}})"}) {
    accel::write_text(folder / accel::state_manifest, manifest);
    INFO(manifest);
    CHECK_THAT(refusal(), ContainsSubstring(accel::state_manifest));
  }
  // A damaged old state does not keep a new one from being saved.
  write();
  CHECK(refusal().empty());
  CHECK_THAT(error_of([&] { StateFolder state(scratch / "none"); }),
             ContainsSubstring("does not exist"));
}

TEST_CASE("saving over a state replaces its parts and keeps what no save wrote") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto folder = scratch / "run";
  fs::create_directories(folder / "logs/deep");
  std::ofstream open_log(folder / "logs/metrics.jsonl");
  open_log << "first\n" << std::flush;
  accel::write_text(folder / "logs/deep/note", "n");
  fs::create_symlink("logs", folder / "link");
  for (int round = 0; round < 3; ++round) {
    write_state_folder(folder, {}, [&](StateParts& parts) {
      parts.add("model.safetensors", text("model " + std::to_string(round)));
      if (round == 0) {
        parts.add_json("scaler", 1);
      }
    });
    open_log << "round " << round << "\n" << std::flush;
  }
  CHECK(names_in(folder) ==
        std::set<std::string>{"accel_state.json", "link", "logs", "model.safetensors"});
  CHECK(accel::read_text(StateFolder(folder).file("model.safetensors")) == "model 2");
  CHECK(accel::read_text(folder / "logs/metrics.jsonl") == "first\nround 0\nround 1\nround 2\n");
  CHECK(accel::read_text(folder / "link/deep/note") == "n");
  CHECK(names_in(scratch.path()) == std::set<std::string>{"run"});
}

TEST_CASE("a link to a folder stays a link") {
  const ScratchFolder scratch(accel_test::memory_folder());
  fs::create_directory(scratch / "disk");
  fs::create_directory_symlink(scratch / "disk", scratch / "latest");
  write_state_folder(scratch / "latest", {}, [](StateParts& parts) { parts.add_json("a", 1); });
  CHECK(fs::is_symlink(scratch / "latest"));
  CHECK(StateFolder(scratch / "disk").json("a") == 1);
}

TEST_CASE("without an exchange of folders, the old state is readable until the new one is") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto folder = scratch / "state";
  const auto write = [&](const std::string& content) {
    write_state_folder(folder, {},
                       [&](StateParts& parts) { parts.add("model.safetensors", text(content)); });
  };
  write("old");
  accel::write_text(folder / "notes", "kept");
  // By hand what a killed save leaves between its two renames.
  fs::rename(folder, scratch / "state.old-save");
  CHECK(accel::read_text(StateFolder(folder).file("model.safetensors")) == "old");
  write("new");
  CHECK(accel::read_text(StateFolder(folder).file("model.safetensors")) == "new");
  CHECK(accel::read_text(folder / "notes") == "kept");
  CHECK(names_in(scratch.path()) == std::set<std::string>{"state"});
  // The plain renames themselves.
  accel::detail::begin_folder(folder);
  accel::write_text(accel::detail::unfinished_folder(folder) / "model.safetensors", "newer");
  accel::detail::publish_folder(folder, {"model.safetensors", "accel_state.json"}, false);
  CHECK(names_in(folder) == std::set<std::string>{"model.safetensors", "notes"});
  CHECK(accel::read_text(folder / "model.safetensors") == "newer");
  CHECK(names_in(scratch.path()) == std::set<std::string>{"state"});
}

TEST_CASE("B20 a save killed between model and optimizer leaves the one before it") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto first = scratch / "checkpoint_1";
  const auto second = scratch / "checkpoint_2";
  CHECK(save_by_two(first, "1")[0].error.empty());
  const auto kill_rank_0 = [](int rank, StateParts& parts) {
    if (rank == 0) {
      // Parts are written by name: after model, before optimizer.
      parts.add("model_killed", [](accel::OutputFile&) { ::raise(SIGKILL); });
    }
  };
  const auto ends = save_by_two(second, "2", kill_rank_0);
  CHECK(ends[0].signal == SIGKILL);
  CHECK(ends[1].signal == 0);
  CHECK_THAT(ends[1].error, ContainsSubstring("another rank failed"));

  CHECK(accel::latest_complete(scratch.path()) == first);
  const auto refusal = error_of([&] { StateFolder state(second); });
  CHECK_THAT(refusal, ContainsSubstring("checkpoint_2: its save was interrupted"));
  CHECK_THAT(refusal, ContainsSubstring("optimizer.safetensors is missing"));
  CHECK_THAT(refusal, !ContainsSubstring("model.safetensors is missing"));

  const auto start = std::chrono::steady_clock::now();
  for (const auto& end : save_by_two(second, "2")) {
    CHECK(end.error.empty());
    CHECK(end.signal == 0);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(accel::latest_complete(scratch.path()) == second);
  CHECK(StateFolder(second).ranks() == 2);
  CHECK(names_in(scratch.path()) == std::set<std::string>{"checkpoint_1", "checkpoint_2"});
}

TEST_CASE("B20 a save killed over an older state of the same name leaves the older state") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto folder = scratch / "state";
  save_by_two(folder, "old");
  for (const char* victim : {"model_killed", "aaa_killed", "zzz_killed"}) {
    for (const int killed : {0, 1}) {
      const auto ends = save_by_two(folder, "new", [&](int rank, StateParts& parts) {
        if (rank == killed) {
          parts.add(victim, [](accel::OutputFile&) { ::raise(SIGKILL); });
        }
      });
      CHECK(ends[killed].signal == SIGKILL);
      CHECK_FALSE(ends[1 - killed].error.empty());
      CHECK(accel::read_text(StateFolder(folder).file("model.safetensors")) == "model old");
    }
  }
  save_by_two(folder, "new");
  CHECK(accel::read_text(StateFolder(folder).file("model.safetensors")) == "model new");
  CHECK(names_in(scratch.path()) == std::set<std::string>{"state"});
}

TEST_CASE("B20 a full disk or an unusable folder on rank 0 is an error on both ranks") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto folder = scratch / "state";
  save_by_two(folder, "old");
  SECTION("full disk") {
    const auto ends = save_by_two(folder, "new", [](int rank, StateParts& parts) {
      if (rank == 0) {
        parts.add("big", [](accel::OutputFile& file) {
          // No file of this process may pass 64 KiB: the write fails as on a full disk, half way.
          ::signal(SIGXFSZ, SIG_IGN);
          const rlimit limit{65536, 65536};
          if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
            throw std::runtime_error("setrlimit");
          }
          file.write(std::string(100'000, 'x'));
        });
      }
    });
    CHECK_THAT(ends[0].error, ContainsSubstring("cannot write") && ContainsSubstring("big"));
    CHECK_THAT(ends[1].error, ContainsSubstring("another rank failed"));
  }
  SECTION("the folder cannot be made") {
    accel::write_text(scratch / "file", "");
    const auto ends = save_by_two(scratch / "file/state", "new");
    CHECK_THAT(ends[0].error, ContainsSubstring("cannot create"));
    CHECK_FALSE(ends[1].error.empty());
    const auto onto_file = save_by_two(scratch / "file", "new");
    CHECK_THAT(onto_file[0].error, ContainsSubstring("it is a file, not a folder"));
    CHECK_FALSE(onto_file[1].error.empty());
    fs::remove(scratch / "file");
  }
  SECTION("one rank cannot say what it has") {
    const auto ends = save_by_two(folder, "new", [](int rank, StateParts&) {
      if (rank == 1) {
        throw accel::Error(accel::ErrorCategory::usage, "no state for Lion");
      }
    });
    CHECK_THAT(ends[0].error, ContainsSubstring("another rank failed"));
    CHECK(ends[1].error == "no state for Lion");
  }
  SECTION("two ranks write one part") {
    const auto theirs = accel::detail::unfinished_folder(folder) / "zzz";
    const auto ends = save_by_two(folder, "new", [&](int rank, StateParts& parts) {
      parts.add("zzz", text(""));
      if (rank == 1) {
        // Before its own: waits until rank 0 has written the part.
        parts.add("aaa", [&](accel::OutputFile&) {
          while (!fs::exists(theirs)) {
            ::usleep(1'000);
          }
        });
      }
    });
    CHECK_THAT(ends[0].error, ContainsSubstring("another rank failed"));
    CHECK_THAT(ends[1].error, ContainsSubstring("zzz was added by another rank too"));
  }
  CHECK(accel::read_text(StateFolder(folder).file("model.safetensors")) == "model old");
  CHECK(names_in(scratch.path()) == std::set<std::string>{"state"});
}

TEST_CASE("B20 twenty saves in a row from both ranks") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto ends = run_two_ranks([&](int rank, const auto& all_agree) {
    for (int round = 0; round < 20; ++round) {
      const auto content = std::to_string(round);
      // Both under one name and under a new one each time.
      for (const auto& folder : {scratch / "state", scratch / ("checkpoint_" + content)}) {
        write_state_folder(folder, SaveGroup{rank, 2, all_agree},
                           [&](StateParts& parts) { fill_as(rank, content, parts); });
        if (accel::read_text(StateFolder(folder).file("random_states_1.safetensors")) !=
            "random " + content) {
          throw std::runtime_error("round " + content + " is not what was saved");
        }
      }
    }
  });
  CHECK(ends[0].error.empty());
  CHECK(ends[1].error.empty());
  CHECK(accel::latest_complete(scratch.path()) == scratch / "checkpoint_19");
  CHECK(names_in(scratch.path()).size() == 21);
}
