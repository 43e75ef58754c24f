// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One command-line flag a key. A template over the application, so that this header does not
// include CLI11: the programs that use it do. Every flag exists with `_` and with `-`, as in
// Accelerate. Truth values of the top level need no value (`--use_cpu`, `--use_cpu=false`); those
// of sections take one (`--fsdp_offload_params true`), as in Accelerate too.
#pragma once

#include <accel/config/keys.hpp>
#include <accel/config/merge.hpp>

#include <algorithm>
#include <string>

namespace accel {

/// The flag's spellings as CLI11 takes them: "--num_processes,--num-processes".
inline std::string flag_spellings(const Key& key) {
  std::string with_dashes(key.flag);
  std::ranges::replace(with_dashes, '_', '-');
  const std::string plain = "--" + std::string(key.flag);
  return with_dashes == key.flag ? plain : plain + ",--" + with_dashes;
}

/// The line of the flag in `--help`.
inline std::string flag_help(const Key& key) {
  std::string help(key.help);
  const char* before = ": ";
  for (const auto choice : key.choices) {
    help += before + std::string(choice);
    before = ", ";
  }
  return help;
}

/// Adds a flag for every key to a CLI::App. What was given is in `flags` once the application has
/// parsed; `flags` must live until then.
template <class App>
void add_config_flags(App& app, ConfigFlags& flags) {
  for (const auto& key : config_keys()) {
    const std::string name(key.name);
    const bool bare = key.kind == KeyKind::boolean && key.section().empty();
    const std::string help = flag_help(key);  // CLI11 2.1 takes a description as an lvalue only
    auto* option = bare ? app.add_flag(flag_spellings(key), help)
                        : app.add_option(flag_spellings(key), help)->type_name("");
    option->each([&flags, name](const std::string& text) { flags[name] = text; });
    option->group(key.section().empty() ? "Configuration" : std::string(key.section()));
  }
}

}  // namespace accel
