// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/legacy.hpp.
#include <accel/config/legacy.hpp>
#include <accel/config/choices.hpp>
#include <accel/config/keys.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace accel::detail {
namespace {

using Kind = Node::Kind;

bool is_strategy(std::string_view text) {
  return std::ranges::find(spellings<ShardingStrategy>, text) != spellings<ShardingStrategy>.end();
}

void translate_top(Node& root) {
  for (auto& [key, value] : root.children) {
    const bool yes = value.kind == Kind::boolean && is_true(value.text);
    if (key == "fp16" && value.kind == Kind::boolean && root.find("mixed_precision") == nullptr) {
      key = "mixed_precision";
      value.text = yes ? "fp16" : "no";
      value.kind = Kind::text;
    } else if (key == "dynamo_backend" && root.find("dynamo_config") == nullptr) {
      key = "dynamo_config";
      Node section{Kind::map, {}, value.line, {}};
      if (value.text != "NO") section.children.push_back({"dynamo_backend", std::move(value)});
      value = std::move(section);
    }
  }
}

void translate_fsdp(Node& section) {
  for (auto& [key, value] : section.children) {
    if (key == "backward_prefetch_policy" || key == "fsdp_backward_prefetch_policy") {
      key = "fsdp_backward_prefetch";
    }
    if (!key.starts_with("fsdp_") && find_key("fsdp_config.fsdp_" + key) != nullptr) {
      key.insert(0, "fsdp_");
    }
    if (key == "fsdp_reshard_after_forward" && is_strategy(value.text))
      key = "fsdp_sharding_strategy";
  }
}

}  // namespace

void translate_legacy_keys(Node& root) {
  translate_top(root);
  for (auto& [key, value] : root.children) {
    if (key == "fsdp_config" && value.kind == Kind::map) translate_fsdp(value);
  }
}

}  // namespace accel::detail
