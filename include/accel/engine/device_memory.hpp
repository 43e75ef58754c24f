// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How much memory tensors take on a device, as LibTorch's allocator counts it. The process as the
// kernel counts it is track/memory.hpp.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace accel {

/// In bytes; torch.cuda.memory_allocated, max_memory_allocated, memory_reserved and
/// max_memory_reserved. All 0 on the CPU, whose allocator keeps no account, and before the first
/// tensor on a device.
struct DeviceMemory {
  std::uint64_t allocated = 0;       ///< by tensors, now
  std::uint64_t peak_allocated = 0;  ///< the most, since the start or reset_peak_memory
  std::uint64_t reserved = 0;        ///< taken from the device, now
  std::uint64_t peak_reserved = 0;   ///< the most
};

/// Local; does not wait for the device.
[[nodiscard]] DeviceMemory device_memory(c10::Device device);

/// Lets the peaks begin again at what is taken now. Does nothing on the CPU.
void reset_peak_memory(c10::Device device);

}  // namespace accel
