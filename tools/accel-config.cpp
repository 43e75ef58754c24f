// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// accel-config: writes a configuration file (default), turns one into C++ types (header), and says
// what holds and why (show). A thin front: everything it does is in accel/config.

#include <accel/config/flags.hpp>
#include <accel/config/keys.hpp>
#include <accel/config/merge.hpp>
#include <accel/config/notes.hpp>
#include <accel/config/policy_header.hpp>
#include <accel/config/policy_names.hpp>
#include <accel/config/search.hpp>
#include <accel/config/text_file.hpp>
#include <accel/config/validate.hpp>
#include <accel/config/wording.hpp>
#include <accel/config/yaml.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

void print_notes(const accel::Config& config) {
  std::fflush(stdout);  // both streams may go to one file
  for (const auto& note : accel::config_notes(config)) fmt::print(stderr, "note: {}\n", note);
}

// ---- default ----

struct DefaultOptions {
  std::string file = "accel.yaml";
  bool overwrite = false;
  accel::ConfigFlags flags;
};

// Takes nothing from the environment or from other files: what is written is what was typed.
void write_default(const DefaultOptions& options) {
  std::error_code code;
  if (!options.overwrite && fs::exists(options.file, code)) {
    accel::detail::fail(accel::ErrorCategory::config,
                        "{}: this file exists already; give --overwrite, or another name with "
                        "--config_file",
                        options.file);
  }
  accel::ConfigFlags flags = options.flags;
  // Accelerate refuses a file without the type.
  flags.try_emplace("distributed_type", "NO");
  const auto resolved = accel::resolve_flags(flags);
  accel::write_config(options.file, resolved.config);
  fmt::print("wrote {}: {}\n", options.file, to_text(accel::policy_names(resolved.config)));
  print_notes(resolved.config);
}

// ---- header ----

struct HeaderOptions {
  std::string file;
  std::string output;
  std::string name_space = accel::PolicyHeaderOptions{}.name_space;
};

bool holds(const fs::path& path, const std::string& text) {
  std::error_code code;
  return fs::is_regular_file(path, code) && accel::detail::read_text_file(path) == text;
}

// Takes nothing from the environment: a build must give the same types wherever it runs. An
// unchanged header keeps its time, so that nothing is compiled again.
void write_header(const HeaderOptions& options) {
  const auto config = accel::read_config(options.file);
  accel::validate(config, options.file);
  const auto text = accel::policy_header(
      accel::policy_names(config),
      {.source = fs::path(options.file).filename().string(), .name_space = options.name_space});
  if (!holds(options.output, text)) accel::detail::replace_text_file(options.output, text);
}

// ---- show ----

struct ShowOptions {
  std::string file;
  bool json = false;
  accel::ConfigFlags flags;
};

std::string places_text() {
  std::string text;
  for (const auto& place : accel::config_file_places()) {
    text += (text.empty() ? "" : ", ") + place.string();
  }
  return text;
}

void show(const ShowOptions& options) {
  accel::ConfigSources sources;
  if (!options.file.empty()) sources.file = options.file;
  sources.flags = options.flags;
  const auto resolved = accel::resolve_config(sources);
  if (options.json) {
    fmt::print("{}", accel::to_json(resolved.config));
    return;
  }
  fmt::print("file      {}\n",
             resolved.file ? resolved.file->string() : "none; looked for " + places_text());
  fmt::print("policies  {}\n\n", to_text(accel::policy_names(resolved.config)));
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  std::vector<std::string> values;
  for (const auto& key : accel::config_keys()) {
    const auto value = key.get(resolved.config);
    values.push_back(value ? accel::to_text(*value) : "");
    if (values.back().empty()) values.back() = "-";
    key_width = std::max(key_width, key.name.size());
    value_width = std::max(value_width, values.back().size());
  }
  for (std::size_t row = 0; row < values.size(); ++row) {
    const auto& key = accel::config_keys()[row];
    fmt::print("{:<{}}  {:<{}}  {}\n", key.name, key_width, values[row], value_width,
               resolved.origin(key.name).where);
  }
  for (const auto& [key, text] : resolved.config.foreign) {
    fmt::print("{:<{}}  {:<{}}  kept for Python\n", key, key_width, text, value_width);
  }
  print_notes(resolved.config);
}

// ---- command line ----

// "--mixed_precison" is nearly one of ours.
std::string suggestion(const CLI::App& app) {
  std::vector<std::string> known;
  for (const auto& key : accel::config_keys()) known.push_back("--" + std::string(key.flag));
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  for (const auto& word : app.remaining(true)) {
    auto typed = word.substr(0, word.find('='));
    std::replace(typed.begin() + 1, typed.end(), '-', '_');
    if (typed.starts_with("-_")) typed.replace(0, 2, "--");
    const auto text = accel::detail::did_you_mean(typed, candidates);
    if (!text.empty()) return text;
  }
  return {};
}

int report(const std::string& message) {
  fmt::print(stderr, "accel-config: {}\n", message);
  return 1;
}

int run(int argc, char** argv) {
  CLI::App app("Writes, shows and compiles configurations of accel, which are files of Accelerate.",
               "accel-config");
  app.require_subcommand(1);
  app.get_formatter()->column_width(52);

  DefaultOptions default_options;
  auto* const default_command = app.add_subcommand("default", "write a configuration file");
  default_command
      ->add_option("--config_file,--config-file", default_options.file,
                   "the file to write; JSON if it ends in .json (accel.yaml)")
      ->type_name("");
  default_command->add_flag("--overwrite", default_options.overwrite, "replace a file that exists");
  accel::add_config_flags(*default_command, default_options.flags);

  HeaderOptions header_options;
  auto* const header_command = app.add_subcommand("header", "write the policies as a C++ header");
  header_command->add_option("--config_file,--config-file", header_options.file, "the file to read")
      ->required()
      ->type_name("");
  header_command->add_option("--output", header_options.output, "the header to write")
      ->required()
      ->type_name("");
  header_command
      ->add_option("--namespace", header_options.name_space,
                   "namespace of the aliases (configured)")
      ->type_name("");

  ShowOptions show_options;
  auto* const show_command = app.add_subcommand("show", "print what holds, and where it is from");
  show_command->add_option("--config_file,--config-file", show_options.file, "the file to read")
      ->type_name("");
  show_command->add_flag("--json", show_options.json, "as a JSON configuration");
  accel::add_config_flags(*show_command, show_options.flags);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) return app.exit(problem);
    const auto words = app.remaining();
    const bool no_command = app.get_subcommands().empty();
    report(no_command && !words.empty()
               ? fmt::format("there is no '{}'; use default, header or show", words.front())
               : problem.what() + suggestion(app));
    return 2;
  }
  if (default_command->parsed()) write_default(default_options);
  if (header_command->parsed()) write_header(header_options);
  if (show_command->parsed()) show(show_options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& problem) {
    return report(problem.what());
  }
}
