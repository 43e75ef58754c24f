// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/document.hpp.
#include <accel/config/document.hpp>
#include <accel/config/json_document.hpp>
#include <accel/config/wording.hpp>
#include <accel/config/yaml_document.hpp>

#include <map>

namespace accel::detail {
namespace {

using Kind = Node::Kind;

// YAML and JSON readers differ in which of two equal keys counts; neither is what the person meant.
void remove_repeated_keys(Node& node, const std::string& name, Faults& faults) {
  std::map<std::string, int, std::less<>> first_line;
  std::erase_if(node.children, [&](auto& child) {
    auto& [key, value] = child;
    remove_repeated_keys(value, name, faults);
    if (node.kind != Kind::map) return false;
    const auto [found, added] = first_line.emplace(key, value.line);
    if (!added) {
      faults.add(fmt::format("{}:{}", name, value.line),
                 "{} is given already on line {}; remove one", in_quotes(key), found->second);
    }
    return !added;
  });
}

}  // namespace

std::optional<Node> parse_document(std::string_view text, const std::string& name, Faults& faults) {
  if (!is_utf8(text)) {
    faults.add(name, "the file is not UTF-8 text");
    return std::nullopt;
  }
  auto root = name.ends_with(".json") || is_json_object(text) ? parse_json(text, name, faults)
                                                              : parse_yaml(text, name, faults);
  if (!root) return std::nullopt;
  if (root->kind != Kind::map) {
    faults.add(name, "a configuration is a list of `key: value` lines; this is {}",
               kind_name(root->kind));
    return std::nullopt;
  }
  remove_repeated_keys(*root, name, faults);
  return root;
}

}  // namespace accel::detail
