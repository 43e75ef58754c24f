// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// accel-launch: starts a program as the ranks of a job on this host and stays with them until the
// last has ended. A thin front: what it does is in accel/launch, what its flags mean in
// accel/config.

#include <accel/config/flags.hpp>
#include <accel/config/keys.hpp>
#include <accel/config/merge.hpp>
#include <accel/config/wording.hpp>
#include <accel/detail/version.hpp>
#include <accel/launch/configured_job.hpp>
#include <accel/launch/launch.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr const char* description =
    R"(Starts a program as the ranks of one job on this host, and stays until the last has ended.
The program ends the options of accel-launch; everything after it is the program's.)";

constexpr const char* footer = R"(
Every `_` of a flag can be a `-` too. Any key of a configuration file is a flag (accel-config show lists them). A flag wins
over the environment (ACCEL_<FLAG>), that over the file, that over the default; flags go into the environment of the ranks.

Ranks find RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and OMP_NUM_THREADS, as under torchrun.
The exit code is 0 if all ranks end well, else that of the first that failed (128 + n for signal n).

  accel-launch --num_processes 2 ./train --epochs 3
  accel-launch --config_file accel.yaml --mixed_precision bf16 ./train
  accel-launch --num_processes 4 --log_dir logs ./train)";

/// What --help shows of the configuration's flags, in two groups; the rest works all the same.
constexpr std::array job_flags{"num_processes", "main_process_port", "num_cpu_threads_per_process",
                               "gpu_ids", "num_machines"};
constexpr std::array program_flags{"mixed_precision", "gradient_accumulation_steps", "use_cpu",
                                   "debug"};

class Formatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string) const override {
    return fmt::format("Usage: {} [options] program [arguments of the program ...]\n",
                       app->get_name());
  }

  /// One spelling is enough; each `_` can be a `-` too.
  std::string make_option_name(const CLI::Option* option, bool) const override {
    const auto& letters = option->get_snames();
    const auto name = "--" + option->get_lnames().front();
    return letters.empty() ? name : "-" + letters.front() + ", " + name;
  }
};

void arrange_help(CLI::App& app) {
  app.get_formatter()->column_width(34);
  for (const auto& key : accel::config_keys()) {
    auto* const option = app.get_option("--" + std::string(key.flag));
    const auto in = [&](const auto& names) {
      return std::ranges::find(names, key.name) != names.end();
    };
    option->group(in(job_flags) ? "The job" : in(program_flags) ? "For the program" : "");
  }
}

/// "--num_proceses" is nearly one of ours.
std::string did_you_mean(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  return accel::detail::did_you_mean(word.substr(0, word.find('=')), candidates);
}

/// The program and its arguments: what is left once our own flags are read.
std::vector<std::string> command_of(const CLI::App& app) {
  auto command = app.remaining();
  if (!command.empty() && command.front() == "--") {
    command.erase(command.begin());
  } else if (!command.empty() && command.front().starts_with('-')) {
    throw CLI::ExtrasError(app.get_name(), {command.front() + did_you_mean(app, command.front())});
  }
  if (command.empty()) throw CLI::RequiredError("a program to start");
  return command;
}

int run(int argc, char** argv) {
  CLI::App app(description, "accel-launch");
  app.formatter(std::make_shared<Formatter>());
  app.prefix_command();
  app.footer(footer);
  app.set_version_flag("--version", accel::version(), "print the version");

  accel::ConfigSources sources;
  std::string config_file;
  std::string log_dir;
  double grace_period = 30;
  bool quiet = false;
  bool cpu = false;
  bool no_python = false;
  accel::add_config_flags(app, sources.flags);
  arrange_help(app);
  app.add_option("--config_file,--config-file", config_file,
                 "the configuration file; unset: ACCEL_CONFIG_FILE, ./accel.yaml, ...")
      ->type_name("")
      ->group("The job");
  app.add_option("--grace_period,--grace-period", grace_period,
                 "seconds from SIGTERM to SIGKILL when ranks are stopped (30)")
      ->type_name("")
      ->check(CLI::Range(0.0, 1e6).description(""))
      ->group("The job");
  app.add_option("--log_dir,--log-dir", log_dir,
                 "rank r writes <dir>/<r>/stdout.log and stderr.log instead of the terminal")
      ->type_name("")
      ->group("The job");
  app.add_flag("-q,--quiet", quiet, "say nothing of ranks that fail; the exit code does")
      ->group("The job");
  app.add_flag("--cpu", cpu)->group("");  // Accelerate's spelling of --use_cpu
  app.add_flag("--no_python,--no-python", no_python)->group("");  // true of every program here

  std::vector<std::string> command;
  try {
    app.parse(argc, argv);
    command = command_of(app);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) return app.exit(problem);
    fmt::print(stderr, "accel-launch: {}; see accel-launch --help\n", problem.what());
    return 2;
  }
  if (std::isnan(grace_period)) {
    fmt::print(stderr, "accel-launch: --grace_period is no number of seconds\n");
    return 2;
  }
  if (cpu) sources.flags["use_cpu"] = "true";
  if (!config_file.empty()) sources.file = config_file;
  auto job = accel::configured_job(accel::resolve_config(sources), sources);
  job.command = std::move(command);
  job.grace_period = std::chrono::milliseconds(static_cast<std::int64_t>(grace_period * 1000));
  job.log_dir = log_dir;
  job.quiet = quiet;
  return accel::launch(job);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "accel-launch: {}\n", problem.what());
    return 1;
  }
}
