// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/notes.hpp.
#include <accel/config/notes.hpp>
#include <accel/config/keys.hpp>

#include <fmt/format.h>

#include <string_view>

namespace accel {

std::vector<std::string> config_notes(const Config& config) {
  static const Config standard;
  std::vector<std::string> notes;
  std::vector<std::string_view> unused;
  // Units are found by FSDP's keys whatever they are for.
  const bool has_units =
      config.distributed_type == DistributedType::deepspeed || config.activation_checkpointing;
  const auto is_of_units = [](const auto& key) {
    return key.leaf() == "fsdp_auto_wrap_policy" || key.leaf() == "fsdp_min_num_params" ||
           key.leaf() == "fsdp_transformer_layer_cls_to_wrap";
  };
  for (const auto& key : config_keys()) {
    const bool elsewhere =
        (key.section() == "fsdp_config" && config.distributed_type != DistributedType::fsdp &&
         !(has_units && is_of_units(key))) ||
        (key.section() == "deepspeed_config" &&
         config.distributed_type != DistributedType::deepspeed);
    if ((key.kept || elsewhere) && key.get(config) != key.get(standard))
      unused.push_back(key.leaf());
  }
  for (const auto& [key, text] : config.foreign) unused.push_back(key);
  for (const auto key : unused) {
    notes.push_back(fmt::format("{} is kept for Python and has no effect here", key));
  }
  if (config.fsdp.auto_wrap_policy == WrapPolicy::no_wrap &&
      config.distributed_type == DistributedType::fsdp) {
    notes.emplace_back(
        "fsdp_auto_wrap_policy NO_WRAP would gather the whole model at once; units are "
        "found as with wrap_auto");
  }
  return notes;
}

}  // namespace accel
