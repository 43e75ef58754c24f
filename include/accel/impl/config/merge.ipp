// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/merge.hpp.
#include <accel/config/merge.hpp>
#include <accel/config/faults.hpp>
#include <accel/config/keys.hpp>
#include <accel/config/reader.hpp>
#include <accel/config/search.hpp>
#include <accel/config/text_file.hpp>
#include <accel/config/validate.hpp>
#include <accel/config/wording.hpp>

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace accel {
namespace {

void merge_file(ResolvedConfig& result, Faults& faults) {
  std::map<std::string, int> lines;
  const auto name = result.file->string();
  detail::read_into(result.config, detail::read_text_file(*result.file), name, faults, lines);
  for (const auto& [key, line] : lines) {
    result.origins[key] = {ConfigSource::file, fmt::format("{}:{}", name, line)};
  }
}

void merge_text(ResolvedConfig& result, const Key& key, const std::string& text,
                ConfigOrigin origin, Faults& faults) {
  std::string why;
  if (auto value = parse_value(key, text, why)) {
    key.set(result.config, std::move(value));
    result.origins[std::string(key.name)] = std::move(origin);
  } else {
    faults.add(origin.where, "{}", why);
  }
}

void merge_environment(ResolvedConfig& result, const EnvironmentLookup& environment,
                       Faults& faults) {
  for (const auto& key : config_keys()) {
    for (const auto& name : environment_names(key)) {
      const auto text = environment(name);
      if (!text || text->empty()) continue;
      merge_text(result, key, *text, {ConfigSource::environment, name}, faults);
      break;
    }
  }
}

void merge_flags(ResolvedConfig& result, const ConfigFlags& flags, Faults& faults) {
  for (const auto& [name, text] : flags) {
    if (const Key* key = find_key(name)) {
      merge_text(result, *key, text, {ConfigSource::flag, "--" + std::string(key->flag)}, faults);
    } else {
      std::vector<std::string_view> names;
      for (const auto& known : config_keys()) names.push_back(known.name);
      faults.add("flag " + name, "unknown key{}", detail::did_you_mean(name, names));
    }
  }
}

// A file that says "NO" was written for one process. Whoever asks for several above it (a flag over
// the file, say) has the later word, and the type follows from their number.
void follow_number(ResolvedConfig& result) {
  auto& config = result.config;
  if (config.distributed_type != DistributedType::no || config.num_processes == 1) return;
  if (result.origin("num_processes").source <= result.origin("distributed_type").source) return;
  config.distributed_type.reset();
  result.origins.erase("distributed_type");
}

// The rules between keys speak of values; where one is missing they would blame the wrong key.
void finish(const ResolvedConfig& result, Faults& faults) {
  if (faults.empty()) {
    check_rules(result.config, result.file ? result.file->string() : "configuration", faults);
  }
  faults.throw_if_any();
}

}  // namespace

ConfigOrigin ResolvedConfig::origin(std::string_view key) const {
  const auto found = origins.find(std::string(key));
  return found == origins.end() ? ConfigOrigin{} : found->second;
}

ResolvedConfig resolve_config(const ConfigSources& sources) {
  ResolvedConfig result;
  Faults faults;
  result.file = find_config_file(sources.file, sources.environment);
  if (result.file) merge_file(result, faults);
  merge_environment(result, sources.environment, faults);
  merge_flags(result, sources.flags, faults);
  follow_number(result);
  finish(result, faults);
  return result;
}

ResolvedConfig resolve_flags(const ConfigFlags& flags) {
  ResolvedConfig result;
  Faults faults;
  merge_flags(result, flags, faults);
  finish(result, faults);
  return result;
}

}  // namespace accel
