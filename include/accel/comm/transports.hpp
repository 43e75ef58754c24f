// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What tensors travel over: shared memory, Gloo or both for those of the CPU, NCCL for those of CUDA
// devices. connection.ipp asks it at start-up. For the bodies of this layer: includes c10d's headers.
#pragma once

#include <accel/comm/communicator.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accel::detail {

/// What to use between the ranks: the options, else the environment. Throws Error(config).
[[nodiscard]] Transport transport_of(const CommunicatorOptions& options);

/// Opens the group's backends for tensors of the CPU and, if that is the device, of CUDA. Every rank
/// must call this, with a store that nothing else uses. Throws Error(config) for what this build or
/// these hosts cannot do.
void set_backends(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Store>& store,
                  c10::DeviceType device, const Ranks& ranks, const CommunicatorOptions& options,
                  Transport transport);

}  // namespace accel::detail
