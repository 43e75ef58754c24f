// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process takes, as the kernel counts it. Used by the progress line and by
// reports.
#pragma once

#include <cstdint>
#include <string>

namespace accel {

/// In bytes; 0 where the kernel does not say.
struct ProcessMemory {
  std::uint64_t resident = 0;  ///< now
  std::uint64_t peak = 0;      ///< the most since the process started
};

/// Local; reads /proc.
[[nodiscard]] ProcessMemory process_memory();

/// "512 B", "1.5 MB", "12.0 GB": powers of 1000, as disks and clouds count.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

}  // namespace accel
