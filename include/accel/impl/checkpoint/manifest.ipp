// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/manifest.hpp.
#include <accel/checkpoint/manifest.hpp>

#include <accel/checkpoint/file.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/version.hpp>

#include <nlohmann/json.hpp>

#include <cctype>
#include <system_error>

namespace accel::detail {
namespace {

namespace fs = std::filesystem;

constexpr int manifest_format = 1;

}  // namespace

bool is_part_name(std::string_view name) {
  if (name.empty() || name.front() == '.' || name == state_manifest) {
    return false;
  }
  for (const char letter : name) {
    if (!std::isalnum(static_cast<unsigned char>(letter)) && letter != '_' && letter != '-' &&
        letter != '.') {
      return false;
    }
  }
  return true;
}

void write_manifest(const fs::path& folder, const Manifest& manifest) {
  nlohmann::ordered_json json{
      {"format", manifest_format},     {"accel", version()},
      {"complete", manifest.complete}, {"ranks", manifest.ranks},
      {"run", manifest.run},           {"parts", nlohmann::ordered_json::object()}};
  for (const auto& [name, size] : manifest.parts) {
    json["parts"][name] = size;
  }
  write_text(folder / state_manifest, json.dump(2) + "\n");
}

namespace {

// nlohmann/json gives 1 for 1.5 and a huge number for -1.
template <class Number>
Number whole_number(const nlohmann::json& value, const fs::path& path) {
  if (!value.is_number_unsigned()) {
    fail(ErrorCategory::checkpoint, "{} is damaged: {} is not a whole number", path.string(),
         value.dump());
  }
  return value.get<Number>();
}

}  // namespace

Manifest read_manifest(const fs::path& folder) {
  const auto path = folder / state_manifest;
  try {
    const auto json = nlohmann::json::parse(read_text(path));
    if (const auto format = whole_number<int>(json.at("format"), path); format != manifest_format) {
      fail(ErrorCategory::checkpoint, "{} has format {}, this library reads {}", path.string(),
           format, manifest_format);
    }
    Manifest manifest;
    json.at("complete").get_to(manifest.complete);
    manifest.ranks = whole_number<int>(json.at("ranks"), path);
    json.at("run").get_to(manifest.run);
    for (const auto& [name, size] : json.at("parts").items()) {
      // A name such as "../x" would make a reader open, and a later save delete, what is not of
      // this folder.
      if (!is_part_name(name)) {
        fail(ErrorCategory::checkpoint, "{} is damaged: it lists a part '{}'", path.string(), name);
      }
      manifest.parts.emplace(name, whole_number<std::uint64_t>(size, path));
    }
    return manifest;
  } catch (const nlohmann::json::exception& problem) {
    fail(ErrorCategory::checkpoint, "{} is damaged: {}", path.string(), problem.what());
  }
}

std::vector<std::string> faulty_parts(const fs::path& folder, const Manifest& manifest) {
  std::vector<std::string> faults;
  for (const auto& [name, size] : manifest.parts) {
    std::error_code error;
    const auto found = fs::file_size(folder / name, error);
    if (error) {
      faults.push_back(fmt::format("{} is missing", name));
    } else if (manifest.complete && found != size) {
      faults.push_back(fmt::format("{} has {} bytes instead of {}", name, found, size));
    }
  }
  return faults;
}

}  // namespace accel::detail
