// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/device_memory.hpp>

#ifdef ACCEL_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace accel {
#ifdef ACCEL_WITH_CUDA
namespace {

/// The allocator, if it has made anything on this device's platform yet.
c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator_of(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  return allocator && allocator->initialized() ? allocator : nullptr;
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::cuda::current_device();
}

}  // namespace
#endif

DeviceMemory device_memory([[maybe_unused]] c10::Device device) {
  DeviceMemory memory;
#ifdef ACCEL_WITH_CUDA
  if (auto* allocator = allocator_of(device)) {
    constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator->getDeviceStats(index_of(device));
    memory.allocated = static_cast<std::uint64_t>(stats.allocated_bytes[all].current);
    memory.peak_allocated = static_cast<std::uint64_t>(stats.allocated_bytes[all].peak);
    memory.reserved = static_cast<std::uint64_t>(stats.reserved_bytes[all].current);
    memory.peak_reserved = static_cast<std::uint64_t>(stats.reserved_bytes[all].peak);
  }
#endif
  return memory;
}

void reset_peak_memory([[maybe_unused]] c10::Device device) {
#ifdef ACCEL_WITH_CUDA
  if (auto* allocator = allocator_of(device)) allocator->resetPeakStats(index_of(device));
#endif
}

}  // namespace accel
