// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/yaml.hpp: the writers, and the doors of the reader.
#include <accel/config/yaml.hpp>
#include <accel/config/json_document.hpp>
#include <accel/config/keys.hpp>
#include <accel/config/reader.hpp>
#include <accel/config/text_file.hpp>
#include <accel/config/wording.hpp>

#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include <map>
#include <utility>
#include <variant>
#include <vector>

namespace accel {
namespace detail {
namespace {

using Kind = Node::Kind;

// Whether a key belongs into a file: the main ones always, the others where they say something.
bool is_written(const Key& key, const Config& config) {
  static const Config standard;
  const auto value = key.get(config);
  if (!value) return false;
  if (value != key.get(standard)) return true;
  if (key.section() == "fsdp_config")
    return key.always && config.distributed_type == DistributedType::fsdp;
  if (key.section() == "deepspeed_config") {
    return key.always && config.distributed_type == DistributedType::deepspeed;
  }
  return key.always;
}

std::vector<const Key*> written_keys(const Config& config, std::string_view section) {
  std::vector<const Key*> keys;
  for (const auto& key : config_keys()) {
    if (key.section() == section && is_written(key, config)) keys.push_back(&key);
  }
  return keys;
}

void emit_text(YAML::Emitter& out, const std::string& text) {
  if (!is_plain_text(text)) out << YAML::DoubleQuoted;
  out << text;
}

void emit_value(YAML::Emitter& out, const Value& value) {
  if (const auto* truth = std::get_if<bool>(&value)) {
    out << *truth;
  } else if (std::holds_alternative<std::int64_t>(value) || std::holds_alternative<double>(value)) {
    out << accel::to_text(value);
  } else {
    emit_text(out, accel::to_text(value));
  }
}

void emit_keys(YAML::Emitter& out, const std::vector<const Key*>& keys, const Config& config) {
  for (const auto* key : keys) {
    out << YAML::Key << std::string(key->leaf()) << YAML::Value;
    emit_value(out, *key->get(config));
    out << YAML::Comment(std::string(key->help));
  }
}

void emit_node(YAML::Emitter& out, const Node& node) {
  switch (node.kind) {
    case Kind::null: out << YAML::Null; break;
    case Kind::boolean:
    case Kind::number: out << node.text; break;
    case Kind::text: emit_text(out, node.text); break;
    case Kind::list:
      out << YAML::BeginSeq;
      for (const auto& [none, item] : node.children) emit_node(out, item);
      out << YAML::EndSeq;
      break;
    case Kind::map:
      out << YAML::BeginMap;
      for (const auto& [key, value] : node.children) {
        out << YAML::Key;
        emit_text(out, key);
        out << YAML::Value;
        emit_node(out, value);
      }
      out << YAML::EndMap;
      break;
  }
}

nlohmann::ordered_json json_of(const Value& value) {
  if (const auto* names = std::get_if<std::vector<std::string>>(&value))
    return accel::to_text(*names);
  return std::visit([](const auto& plain) { return nlohmann::ordered_json(plain); }, value);
}

// A value can be set in C++ that no file can hold: a text that is not UTF-8, a number out of range,
// a name with a comma.
std::string checked(std::string text, const Config& config, const std::string& name) {
  const Config back = parse_config(text, name);
  for (const auto& key : config_keys()) {
    if (key.get(back) != key.get(config)) {
      const auto value = key.get(config);
      fail(ErrorCategory::config, "{}: {} would not read back equal from a file; set another value",
           key.name, value ? in_quotes(accel::to_text(*value)) : "unset");
    }
  }
  if (back.foreign != config.foreign) {
    fail(
        ErrorCategory::config,
        "a value of Config::foreign would not read back equal from a file; set it to compact JSON");
  }
  return text;
}

}  // namespace

}  // namespace detail

Config read_config(const std::filesystem::path& path) {
  return parse_config(detail::read_text_file(path), path.string());
}

Config parse_config(std::string_view text, const std::string& name) {
  Config config;
  Faults faults;
  std::map<std::string, int> lines;
  detail::read_into(config, text, name, faults, lines);
  faults.throw_if_any();
  return config;
}

void write_config(const std::filesystem::path& path, const Config& config) {
  detail::replace_text_file(path,
                            path.string().ends_with(".json") ? to_json(config) : to_yaml(config));
}

std::string to_yaml(const Config& config) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  detail::emit_keys(out, detail::written_keys(config, ""), config);
  for (const auto section : config_sections()) {
    const auto keys = detail::written_keys(config, section);
    if (keys.empty()) continue;
    out << YAML::Key << std::string(section) << YAML::Value << YAML::BeginMap;
    detail::emit_keys(out, keys, config);
    out << YAML::EndMap;
  }
  for (const auto& [key, text] : config.foreign) {
    out << YAML::Key << key << YAML::Value;
    detail::emit_node(out, detail::node_of_json(text));
  }
  out << YAML::EndMap << YAML::Newline;
  return detail::checked(out.c_str(), config, "config.yaml");
}

std::string to_json(const Config& config) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  const auto put = [&](nlohmann::ordered_json& map, std::string_view section) {
    for (const auto* key : detail::written_keys(config, section)) {
      map[std::string(key->leaf())] = detail::json_of(*key->get(config));
    }
  };
  put(root, "");
  for (const auto section : config_sections()) {
    auto map = nlohmann::ordered_json::object();
    put(map, section);
    if (!map.empty()) root[std::string(section)] = std::move(map);
  }
  for (const auto& [key, text] : config.foreign) {
    root[key] = nlohmann::ordered_json::parse(detail::json_text(detail::node_of_json(text)));
  }
  constexpr auto replace = nlohmann::ordered_json::error_handler_t::replace;
  return detail::checked(root.dump(2, ' ', false, replace) + "\n", config, "config.json");
}

}  // namespace accel
