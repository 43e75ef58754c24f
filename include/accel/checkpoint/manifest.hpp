// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The file that makes a folder a state: which parts there are, and whether they are whole. Read and
// written by state_folder.hpp only. Needs no LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// The manifest's name in a state's folder.
inline constexpr const char* state_manifest = "accel_state.json";

namespace detail {

/// It exists in two forms. While a state is written it lists the parts that are to come, so that a
/// reader of an interrupted save can name the missing ones; in a whole state it gives their sizes.
struct Manifest {
  bool complete = false;
  int ranks = 1;
  std::string run;
  std::map<std::string, std::uint64_t, std::less<>> parts;
};

/// Whether a part may be called so: letters, digits, '_', '-' and '.', and not hidden.
bool is_part_name(std::string_view name);

void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

/// Throws, naming the file, if it is damaged.
Manifest read_manifest(const std::filesystem::path& folder);

/// The parts that are not as the manifest says, each with what is wrong: "x is missing".
std::vector<std::string> faulty_parts(const std::filesystem::path& folder,
                                      const Manifest& manifest);

}  // namespace detail
}  // namespace accel
