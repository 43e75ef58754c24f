// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/memory.hpp>

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string_view>

namespace accel {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string field; status >> field;) {
    std::uint64_t kibibytes = 0;
    if (field == "VmRSS:" && status >> kibibytes) memory.resident = kibibytes * 1024;
    if (field == "VmHWM:" && status >> kibibytes) memory.peak = kibibytes * 1024;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  if (memory.peak == 0) {
    // Sandboxed kernels leave VmHWM out.
    struct rusage usage{};
    if (::getrusage(RUSAGE_SELF, &usage) == 0)
      memory.peak = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  }
  memory.peak = std::max(memory.peak, memory.resident);
  return memory;
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  constexpr std::array units = {"kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  // 999.95 would be printed as 1000.0 of the smaller unit.
  for (; value >= 999.95 && unit + 1 < units.size(); ++unit) value /= 1000;
  return fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace accel
