// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Where tests of offload<...> put their files.
#pragma once

#include <accel/engine/accelerator_options.hpp>

#include <filesystem>
#include <string>

namespace accel::test {

/// On the disk of the build, since the system's folder for temporary files may be memory.
inline std::string offload_folder() {
  const auto path = std::filesystem::path(ACCEL_BINARY_DIR) / "offload";
  std::filesystem::create_directories(path);
  return path.string();
}

inline AcceleratorOptions offload_options() {
  AcceleratorOptions options;
  options.offload.folder = offload_folder();
  return options;
}

}  // namespace accel::test
