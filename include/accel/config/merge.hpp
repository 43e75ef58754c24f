// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One configuration out of four sources. For every key alike: flag over environment over file over
// default. Comes after search.hpp and yaml.hpp, before policy_names.hpp. Remembers where each value
// came from, for messages and for `accel-config show`.
#pragma once

#include <accel/config/config.hpp>
#include <accel/config/environment.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace accel {

/// Flags that were given: the full name of a key ("fsdp_config.fsdp_version") and its text. See
/// flags.hpp.
using ConfigFlags = std::map<std::string, std::string>;

/// What resolve_config looks at. The default is what a program without flags wants.
struct ConfigSources {
  std::optional<std::filesystem::path> file{};  ///< --config_file; unset: see search.hpp
  EnvironmentLookup environment = process_environment;
  ConfigFlags flags{};
};

/// Who gave a value, in rising order of rank.
enum class ConfigSource { standard, file, environment, flag };

/// Where a value came from.
struct ConfigOrigin {
  ConfigSource source = ConfigSource::standard;
  std::string where = "default";  ///< "accel.yaml:3", "ACCEL_NUM_PROCESSES", "--num_processes"
};

/// A configuration that passed every check.
struct ResolvedConfig {
  Config config;
  std::optional<std::filesystem::path> file{};  ///< the one that was read
  std::map<std::string, ConfigOrigin>
      origins;  ///< of the keys that are not at their default's place

  /// Where the value of a key came from, by full name.
  [[nodiscard]] ConfigOrigin origin(std::string_view key) const;
};

/// Finds and reads the file, looks at the environment, applies the flags, then checks the rules
/// between keys (validate.hpp). A `distributed_type` of NO gives way to a `num_processes` above 1
/// from a higher source, and follows from the number then. Throws Error(config) with all faults of all sources. An empty
/// variable counts as unset.
ResolvedConfig resolve_config(const ConfigSources& sources = {});

/// The defaults and the flags alone, for a program that writes a file.
ResolvedConfig resolve_flags(const ConfigFlags& flags);

}  // namespace accel
