// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/partial_state.hpp>
#include <accel/detail/error.hpp>

#include <ATen/Context.h>
#ifdef ACCEL_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace accel {
namespace {

int cuda_devices() {
#ifdef ACCEL_WITH_CUDA
  return c10::cuda::device_count();
#else
  return 0;
#endif
}

/// Makes a CUDA device the current one of this thread: NCCL, and tensors that name no index, use
/// that.
void make_current([[maybe_unused]] c10::Device device) {
#ifdef ACCEL_WITH_CUDA
  if (device.is_cuda()) c10::cuda::set_device(device.index());
#endif
}

void warn(const std::string& sentence) { fmt::print(stderr, "{}\n", sentence); }

}  // namespace

c10::Device device_of(device_kind kind, const Ranks& ranks, int index) {
  if (kind == device_kind::cpu) return {c10::DeviceType::CPU};
  const int count = cuda_devices();
  if (kind == device_kind::automatic && count == 0) return {c10::DeviceType::CPU};
  if (kind == device_kind::xla)
    detail::fail(ErrorCategory::config,
                 "accel: rank {}: this build has no XLA device; use on<cpu> or on<cuda>",
                 ranks.rank);
  if (count == 0)
    detail::fail(ErrorCategory::config,
                 "accel: rank {}: on<cuda> was asked for, but no CUDA device is visible to this "
                 "build; use on<cpu> or on<automatic>, or build with -DACCEL_CUDA=ON",
                 ranks.rank);
  if (index < 0) index = ranks.local_rank;
  if (index >= count)
    detail::fail(ErrorCategory::config,
                 "accel: rank {}: CUDA device {} does not exist, {} are visible; start at most {} "
                 "processes on this host or set device_index",
                 ranks.rank, index, count, count);
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

PartialState::PartialState(Communicator communicator, c10::Device device)
    : communicator_(std::move(communicator)), device_(device) {
  make_current(device_);
}

PartialState::PartialState(device_kind device, const CommunicatorOptions& options, int device_index)
    : device_(c10::DeviceType::CPU) {
  const auto ranks = discover_ranks(process_environment, warn);
  device_ = device_of(device, ranks, device_index);
  make_current(device_);
  communicator_ = Communicator::connect(ranks, device_.type(), options);
}

}  // namespace accel
