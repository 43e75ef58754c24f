// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of accel-launch: where its options end and the program's begin, and which source
// of a value wins.
#include "launched_job.hpp"

#include "support/scratch_folder.hpp"

#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fstream>

using Catch::Matchers::ContainsSubstring;
using namespace accel_test;

namespace {

Finished run(const std::vector<std::string>& arguments,
             const std::function<void()>& in_child = {}) {
  LaunchedJob job(arguments, in_child);
  return job.finish();
}

/// How many processes a job has.
std::string world(std::vector<std::string> flags, const std::function<void()>& in_child = {}) {
  flags.insert(flags.end(), {"sh", "-c", "[ $RANK = 0 ] && echo $WORLD_SIZE; exit 0"});
  const auto finished = run(flags, in_child);
  INFO(finished.err);
  CHECK(finished.status == 0);
  return finished.out;
}

}  // namespace

TEST_CASE("everything after the program is the program's, flags of the same name too") {
  const auto finished = run({"--num_processes", "1", "echo", "--num_processes", "9", "--help", "-q",
                             "--", "-x", "--no-such"});
  CHECK(finished.status == 0);
  CHECK(finished.out == "--num_processes 9 --help -q -- -x --no-such\n");
}

TEST_CASE("a lone -- ends the options") {
  const auto finished = run({"--num_processes", "1", "--", "echo", "--", "-x"});
  CHECK(finished.status == 0);
  CHECK(finished.out == "-- -x\n");
}

TEST_CASE("both spellings of a flag, with a space or =") {
  for (const auto& flags : std::vector<std::vector<std::string>>{{"--num_processes", "2"},
                                                                 {"--num-processes", "2"},
                                                                 {"--num_processes=2"},
                                                                 {"--num-processes=2"}})
    CHECK(world(flags) == "2\n");
}

TEST_CASE("B41 number of processes: flag over environment over file over default") {
  const ScratchFolder folder;
  const auto file = (folder / "accel.yaml").string();
  std::ofstream(file)
      << "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 3\n";
  const auto four = [] { ::setenv("ACCEL_NUM_PROCESSES", "4", 1); };
  CHECK(world({"--config_file", file, "--num_processes", "2"}, four) == "2\n");
  CHECK(world({"--config_file", file}, four) == "4\n");
  CHECK(world({"--config_file", file}) == "3\n");
  CHECK(world({}) == "1\n");
}

TEST_CASE("ranks of a job with --config_file find that file, wherever they go") {
  const ScratchFolder folder;
  std::ofstream(folder / "job.yaml")
      << "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nnum_processes: 1\n";
  const auto finished =
      run({"--config_file", "job.yaml", "sh", "-c", "cd /; cat $ACCEL_CONFIG_FILE"},
          [&] { REQUIRE(::chdir(folder.path().c_str()) == 0); });
  CHECK(finished.status == 0);
  CHECK_THAT(finished.out, ContainsSubstring("num_processes: 1"));
}

TEST_CASE("threads: a number in a file yields to the caller's OMP_NUM_THREADS, a flag does not") {
  const ScratchFolder folder;
  const auto file = (folder / "accel.yaml").string();
  std::ofstream(file) << "compute_environment: LOCAL_MACHINE\ndistributed_type: "
                         "NO\nnum_cpu_threads_per_process: 3\n";
  const auto five = [] { ::setenv("OMP_NUM_THREADS", "5", 1); };
  const auto threads = [&](std::vector<std::string> flags,
                           const std::function<void()>& in_child = {}) {
    flags.insert(flags.end(), {"--config_file", file, "sh", "-c", "echo $OMP_NUM_THREADS"});
    return run(flags, in_child).out;
  };
  CHECK(threads({}) == "3\n");
  CHECK(threads({}, five) == "5\n");
  CHECK(threads({"--num_cpu_threads_per_process", "2"}, five) == "2\n");
}

TEST_CASE("command lines that are wrong: nothing starts, and the sentence names the flag") {
  struct Wrong {
    std::vector<std::string> arguments;
    std::string says;
  };
  const auto wrong = GENERATE(values<Wrong>({
      {{"--num_proc", "2", "echo", "started"}, "--num_proc"},  // abbreviations are off
      {{"--num_proceses", "2", "echo", "started"}, "did you mean '--num_processes'"},
      {{"--num_processes", "two", "echo", "started"}, "'two'"},
      {{"--num_processes", "0", "echo", "started"}, "--num_processes"},
      {{"--num_processes", "-1", "echo", "started"}, "--num_processes"},
      {{"--num_processes"}, "--num_processes"},
      {{"--num_processes", "2"}, "a program to start"},
      {{}, "a program to start"},
      {{"--"}, "a program to start"},
      {{"--mixed_precision", "fp17", "echo", "started"}, "fp17"},
      {{"--grace_period", "soon", "echo", "started"}, "--grace_period"},
      {{"--grace_period", "-1", "echo", "started"}, "--grace_period"},
      {{"--config_file", "/no/such/file.yaml", "echo", "started"}, "/no/such/file.yaml"},
      {{"--num_machines", "2", "--num_processes", "2", "--main_process_ip", "a", "echo", "started"},
       "one host"},
  }));
  CAPTURE(wrong.arguments);
  const auto finished = run(wrong.arguments);
  CHECK(finished.status > 0);
  CHECK(finished.status < 3);
  CHECK(finished.out.empty());
  CHECK_THAT(finished.err, ContainsSubstring(wrong.says));
}

TEST_CASE("--help shows the flags of launching and ends well") {
  const auto finished = run({"--help"});
  CHECK(finished.status == 0);
  for (const char* flag :
       {"--num_processes", "--main_process_port", "--num_cpu_threads_per_process",
        "--mixed_precision", "--gradient_accumulation_steps", "--grace_period", "--log_dir",
        "--quiet", "--debug", "--config_file"})
    CHECK_THAT(finished.out, ContainsSubstring(flag));
  CHECK_THAT(finished.out, !ContainsSubstring("fsdp_"));
}
