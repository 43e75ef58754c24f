// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/search.hpp.
#include <accel/config/search.hpp>
#include <accel/detail/error.hpp>

#include <string>
#include <system_error>

namespace accel {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> nonempty(const EnvironmentLookup& environment, const std::string& name) {
  auto value = environment(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

// As Python's expanduser, which Accelerate applies to its variables.
fs::path expanded(const std::string& path, const EnvironmentLookup& environment) {
  if (path == "~" || path.starts_with("~/")) {
    if (const auto home = nonempty(environment, "HOME")) return *home + path.substr(1);
  }
  return path;
}

std::optional<fs::path> folder(const EnvironmentLookup& environment, const std::string& variable,
                               const char* below_home) {
  if (const auto value = nonempty(environment, variable)) return expanded(*value, environment);
  if (const auto home = nonempty(environment, "HOME")) return fs::path(*home) / below_home;
  return std::nullopt;
}

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(path, code);
}

}  // namespace

std::vector<fs::path> config_file_places(const EnvironmentLookup& environment) {
  std::vector<fs::path> places{"accel.yaml"};
  if (const auto user = folder(environment, "XDG_CONFIG_HOME", ".config")) {
    places.push_back(*user / "accel" / "accel.yaml");
  }
  if (const auto hub = nonempty(environment, "HF_HOME")) {
    places.push_back(expanded(*hub, environment) / "accelerate" / "default_config.yaml");
  } else if (const auto cache = folder(environment, "XDG_CACHE_HOME", ".cache")) {
    places.push_back(*cache / "huggingface" / "accelerate" / "default_config.yaml");
  }
  return places;
}

std::optional<fs::path> find_config_file(const std::optional<fs::path>& named,
                                         const EnvironmentLookup& environment) {
  if (named) {
    if (is_there(*named)) return named;
    detail::fail(ErrorCategory::config,
                 "--config_file {}: there is no such file; correct the name, or write one with "
                 "`accel-config default --config_file {}`",
                 named->string(), named->string());
  }
  for (const auto* const variable : {"ACCEL_CONFIG_FILE", "ACCELERATE_CONFIG_FILE"}) {
    if (const auto value = nonempty(environment, variable)) {
      auto path = expanded(*value, environment);
      if (is_there(path)) return path;
      detail::fail(ErrorCategory::config,
                   "environment variable {}: there is no file {}; correct or unset the variable",
                   variable, path.string());
    }
  }
  for (auto& place : config_file_places(environment)) {
    if (is_there(place)) return std::move(place);
  }
  return std::nullopt;
}

}  // namespace accel
