// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/reader.hpp.
#include <accel/config/reader.hpp>
#include <accel/config/document.hpp>
#include <accel/config/json_document.hpp>
#include <accel/config/keys.hpp>
#include <accel/config/legacy.hpp>
#include <accel/config/wording.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace accel::detail {
namespace {

using Kind = Node::Kind;

std::string_view needed(KeyKind kind) {
  switch (kind) {
    case KeyKind::boolean: return "true or false";
    case KeyKind::integer: return "a whole number";
    case KeyKind::number: return "a number";
    case KeyKind::names: return "names with commas between them, or a list of them";
    case KeyKind::choice:
    case KeyKind::text: break;
  }
  return "a text";
}

// Accelerate itself writes `downcast_bf16: 'no'`, so a quoted word can be a truth value; a number
// cannot.
bool fits(const Key& key, const Node& node) {
  switch (key.kind) {
    case KeyKind::boolean:
      return node.kind == Kind::boolean ||
             (node.kind == Kind::text && node.text != "0" && node.text != "1");
    case KeyKind::integer:
    case KeyKind::number: return node.kind == Kind::number;
    case KeyKind::choice: return node.kind != Kind::list && node.kind != Kind::map;
    case KeyKind::text:
    case KeyKind::names: break;
  }
  return node.kind == Kind::text || node.kind == Kind::number;
}

// Reads one document into a Config.
class Reader {
 public:
  Reader(Config& config, const std::string& name, Faults& faults, std::map<std::string, int>& lines)
      : config_(config), name_(name), faults_(faults), lines_(lines) {}

  void read(const Node& root) {
    for (const auto& [word, node] : root.children) {
      if (std::ranges::find(config_sections(), word) != config_sections().end()) {
        read_section(word, node);
      } else if (std::ranges::find(foreign_keys(), word) != foreign_keys().end()) {
        read_foreign(word, node);
      } else {
        read_key("", word, node);
      }
    }
  }

 private:
  template <class... Arguments>
  void fault(const Node& node, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    faults_.add(fmt::format("{}:{}", name_, node.line), format,
                std::forward<Arguments>(arguments)...);
  }

  void read_section(const std::string& section, const Node& node) {
    if (node.kind == Kind::null) return;
    if (node.kind != Kind::map) {
      fault(node, "{}: this is a section, with its keys indented below it, not {}", section,
            kind_name(node.kind));
      return;
    }
    for (const auto& [word, value] : node.children) read_key(section, word, value);
  }

  // Accelerate writes its own defaults for these; only what a person set is worth keeping.
  void read_foreign(const std::string& word, const Node& node) {
    auto text = json_text(node);
    if (text != "null" && text != "false" && text != "{}" && text != "[]" && text != "\"\"") {
      config_.foreign[word] = std::move(text);
    }
  }

  void read_key(const std::string& section, const std::string& word, const Node& node) {
    const auto name = section.empty() ? word : section + "." + word;
    const Key* key = word.find('.') == std::string::npos ? find_key(name) : nullptr;
    if (key == nullptr) {
      unknown(section, word, node);
      return;
    }
    if (node.kind == Kind::null) return;
    const auto [line, first] = lines_.emplace(name, node.line);
    if (!first) {
      fault(node, "{}: this is given already on line {}; remove one", name, line->second);
      return;
    }
    std::string why;
    if (auto value = value_of(*key, node, why)) {
      key->set(config_, std::move(value));
    } else {
      fault(node, "{}: {}", name, why);
    }
  }

  static std::optional<Value> value_of(const Key& key, const Node& node, std::string& why) {
    if (key.kind == KeyKind::names && node.kind == Kind::list) return names_of(node, why);
    if (fits(key, node)) return parse_value(key, node.text, why);
    const auto shown = node.text.empty() ? "this" : in_quotes(node.text);
    why = fmt::format("{} is {}, but the key needs {}{}", shown, kind_name(node.kind),
                      needed(key.kind), quoting_advice(key, node));
    return std::nullopt;
  }

  // A word that is of the right type but for its quotes.
  static std::string_view quoting_advice(const Key& key, const Node& node) {
    std::string ignored;
    if (node.kind == Kind::text && parse_value(key, node.text, ignored)) {
      return "; remove the quotes";
    }
    const bool wants_text = key.kind == KeyKind::text || key.kind == KeyKind::names;
    return node.kind == Kind::boolean && wants_text ? "; put quotes around it if it is one" : "";
  }

  static std::optional<Value> names_of(const Node& list, std::string& why) {
    std::vector<std::string> names;
    for (const auto& [none, item] : list.children) {
      if (item.kind != Kind::text || item.text.empty() ||
          item.text.find(',') != std::string::npos) {
        why = fmt::format("an entry of the list is not a name: {}", in_quotes(item.text));
        return std::nullopt;
      }
      names.push_back(item.text);
    }
    return names;
  }

  void unknown(const std::string& section, const std::string& word, const Node& node) {
    std::vector<std::string_view> siblings;
    for (const auto& key : config_keys()) {
      if (key.leaf() == word) {
        fault(node, "{}: this key belongs {}", in_quotes(word),
              key.section().empty() ? "to the top level" : "into " + std::string(key.section()));
        return;
      }
      if (key.section() == section) siblings.push_back(key.leaf());
    }
    if (section.empty()) {
      siblings.insert(siblings.end(), config_sections().begin(), config_sections().end());
      siblings.insert(siblings.end(), foreign_keys().begin(), foreign_keys().end());
    }
    const auto meant = did_you_mean(word, siblings);
    fault(node, "{}: unknown key{}{}", in_quotes(word), section.empty() ? "" : " of " + section,
          meant.empty() ? "; `accel-config show` lists them all" : meant);
  }

  Config& config_;
  const std::string& name_;
  Faults& faults_;
  std::map<std::string, int>& lines_;
};

}  // namespace

void read_into(Config& config, std::string_view text, const std::string& name, Faults& faults,
               std::map<std::string, int>& lines) {
  auto root = parse_document(text, name, faults);
  if (!root) return;
  translate_legacy_keys(*root);
  Reader(config, name, faults, lines).read(*root);
}

}  // namespace accel::detail
