// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Prints docs/keys.md: every key of a configuration from the table of accel/config/keys.hpp. What a
// key selects is found by trying its values on configurations of each kind and comparing the
// policies. The test docs.keys compares the page with this output, so that neither can change
// alone.
//
//   print_keys > docs/keys.md

#include <accel/config/config.hpp>
#include <accel/config/keys.hpp>
#include <accel/config/policy_names.hpp>
#include <accel/detail/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using accel::Config;
using accel::Key;
using accel::KeyKind;

/// What the keys do that change no policy. Every key that accel acts on must select something or be
/// here.
const std::map<std::string_view, std::string_view> other_effects{
    {"num_processes", "the ranks that `accel-launch` starts"},
    {"num_machines", "`accel-launch` refuses more than 1"},
    {"machine_rank", "checked against `num_machines`"},
    {"main_process_ip", "the variable says where ranks of MPI meet, if `MASTER_ADDR` does not"},
    {"main_process_port",
     "`MASTER_PORT` of the ranks of `accel-launch`; the variable also for ranks of MPI"},
    {"debug", "ranks compare what they call, and from which line, before each collective"},
    {"num_cpu_threads_per_process", "`OMP_NUM_THREADS` of the ranks of `accel-launch`"},
    {"fsdp_config.fsdp_version", "nothing: both mean the same here"},
    {"fsdp_config.fsdp_min_num_params", "`AcceleratorOptions::sharded.min_num_params`"},
    {"deepspeed_config.offload_optimizer_nvme_path", "`AcceleratorOptions::offload.folder`"},
    {"deepspeed_config.offload_param_nvme_path", "`AcceleratorOptions::offload.folder`"},
    {"deepspeed_config.deepspeed_config_file", "refused: write the keys of this section instead"},
    {"parallelism_config.parallelism_config_dp_replicate_size",
     "above 1: `sharded<hybrid<...>>`; times `dp_shard_size` it must be `num_processes`"},
    {"parallelism_config.parallelism_config_dp_shard_size",
     "checked: see `dp_replicate_size`; 1 where the section is not used"},
    {"parallelism_config.parallelism_config_tp_size", "refused above 1"},
    {"parallelism_config.parallelism_config_cp_size", "refused above 1"},
    {"parallelism_config.parallelism_config_sp_size", "refused above 1"},
};

/// Configurations that a key is tried on: the first on which one of its values says something else.
std::vector<Config> situations() {
  std::vector<Config> all(6);
  all[1].mixed_precision = accel::MixedPrecision::bf16_true;
  all[2].distributed_type = accel::DistributedType::fsdp;
  all[3].distributed_type = accel::DistributedType::deepspeed;
  all[3].deepspeed.offload_optimizer_nvme_path = all[3].deepspeed.offload_param_nvme_path = "/disk";
  all[4] = all[3];
  all[4].deepspeed.zero_stage = 3;
  all[4].deepspeed.offload_optimizer_device = accel::OffloadDevice::cpu;
  all[5] = all[2];
  all[5].fsdp.activation_checkpointing = true;
  return all;
}

/// Texts that stand for the values of a key.
std::vector<std::string> values_of(const Key& key) {
  switch (key.kind) {
    case KeyKind::boolean: return {"true", "false"};
    case KeyKind::choice: return {key.choices.begin(), key.choices.end()};
    case KeyKind::names: return {"BlockImpl"};
    case KeyKind::integer:
      if (key.most > 9) return {"2"};
      break;
    case KeyKind::number:
    case KeyKind::text: return {"0,1"};
  }
  std::vector<std::string> numbers;
  for (auto number = key.least; number <= key.most; ++number)
    numbers.push_back(std::to_string(number));
  return numbers;
}

std::optional<accel::PolicyNames> policies_of(const Config& config) {
  try {
    return accel::policy_names(config);
  } catch (const accel::Error&) {
    return std::nullopt;  // this situation forbids this value
  }
}

/// "`value`: `policy`" for each value that changes a policy of the situation; nothing if none does.
std::vector<std::string> changes(const Key& key, const Config& situation) {
  const auto before = policies_of(situation).value();
  std::vector<std::string> found;
  bool selected = false;
  for (const auto& text : values_of(key)) {
    std::string why;
    const auto value = accel::parse_value(key, text, why);
    if (!value) throw std::runtime_error(fmt::format("{}: {}", key.name, why));
    Config config = situation;
    key.set(config, *value);
    const auto after = policies_of(config);
    if (!after) found.push_back(fmt::format("`{}`: refused", text));
    if (!after || *after == before) continue;
    selected = true;
    std::vector<std::string> spelled;
    using Names = accel::PolicyNames;
    for (const auto axis :
         {&Names::backend, &Names::precision, &Names::accumulation, &Names::placement})
      if ((*after).*axis != before.*axis) spelled.push_back(fmt::format("`{}`", (*after).*axis));
    found.push_back(fmt::format("`{}`: {}", text, fmt::join(spelled, ", ")));
  }
  if (!selected) found.clear();
  return found;
}

std::string selects(const Key& key) {
  if (key.kept) return "";
  if (const auto other = other_effects.find(key.name); other != other_effects.end())
    return std::string(other->second);
  for (const auto& situation : situations())
    if (const auto found = changes(key, situation); !found.empty())
      return fmt::format("{}", fmt::join(found, "; "));
  throw std::runtime_error(
      fmt::format("{} selects no policy; say in print_keys.cpp what it does", key.name));
}

std::string values_text(const Key& key) {
  switch (key.kind) {
    case KeyKind::boolean: return "`true`, `false`";
    case KeyKind::choice: return fmt::format("`{}`", fmt::join(key.choices, "`, `"));
    case KeyKind::names: return "names";
    case KeyKind::number: return "number";
    case KeyKind::text: return "text";
    case KeyKind::integer: break;
  }
  return key.most >= std::numeric_limits<int>::max()
             ? fmt::format("whole number from {}", key.least)
             : fmt::format("{} to {}", key.least, key.most);
}

std::string default_text(const Key& key) {
  const auto value = key.get(Config());
  const auto text = value ? accel::to_text(*value) : "";
  return text.empty() ? "" : fmt::format("`{}`", text);
}

/// The first variable, and those that the rule does not give.
std::string variables_text(const Key& key) {
  auto names = accel::environment_names(key);
  names.erase(names.begin() + 1);
  return fmt::format("`{}`", fmt::join(names, "`, `"));
}

std::string name_text(const Key& key) {
  std::string text = fmt::format("`{}`", key.leaf());
  if (key.flag != key.leaf()) text += fmt::format(" (`--{}`)", key.flag);
  return key.ours ? text + " *" : text;
}

void print_section(std::string_view section, bool kept) {
  if (kept)
    fmt::print("\n| key | values | default | variables | what it says |\n|---|---|---|---|---|\n");
  else
    fmt::print("\n| key | values | default | variables | what it says | what it selects |\n"
               "|---|---|---|---|---|---|\n");
  for (const auto& key : accel::config_keys()) {
    if (key.section() != section || key.kept != kept) continue;
    fmt::print("| {} | {} | {} | {} | {} |", name_text(key), values_text(key), default_text(key),
               variables_text(key), key.help);
    fmt::print("{}\n", kept ? "" : fmt::format(" {} |", selects(key)));
  }
}

bool has(std::string_view section, bool kept) {
  for (const auto& key : accel::config_keys())
    if (key.section() == section && key.kept == kept) return true;
  return false;
}

}  // namespace

int main() try {
  fmt::print(
      "# Keys of a configuration\n\n"
      "Printed by `tools/check/print_keys.cpp` from the table of `accel/config/keys.hpp`. "
      "[configuration.md](configuration.md) says how files, variables and flags come together.\n\n"
      "- The flag of a key is its name behind `--`; the name of its section is left out. Truth "
      "values of the top level need no value (`--use_cpu`), those of a section do "
      "(`--fsdp_offload_params true`).\n"
      "- Each variable `ACCEL_...` is also read as `ACCELERATE_...`, which comes second; what else "
      "is in the column comes last.\n"
      "- Without a default, a key is not set. Choices may be written in any case; "
      "names are separated by commas, or a list in a file.\n"
      "- A key with * is ours: Accelerate refuses a file that has it.\n"
      "- What it selects: the policy of each value that changes one. A key that needs another one, "
      "such as the `distributed_type` of its section, is shown with it.\n");
  std::vector<std::string_view> sections{""};
  for (const auto section : accel::config_sections()) sections.push_back(section);
  for (const auto section : sections) {
    fmt::print("\n## {}\n", section.empty() ? "Top level" : fmt::format("`{}`", section));
    if (has(section, false)) print_section(section, false);
    if (!has(section, true)) continue;
    fmt::print("\nKept for Python, without effect here:\n");
    print_section(section, true);
  }
  fmt::print("\n## Kept as they are\n\n"
             "Accelerate's keys that mean nothing here are read and written back with whatever "
             "they hold: `{}`.\n",
             fmt::join(accel::foreign_keys(), "`, `"));
} catch (const std::exception& problem) {
  fmt::print(stderr, "print_keys: {}\n", problem.what());
  return 1;
}
