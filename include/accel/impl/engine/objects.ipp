// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/objects.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>

#include <cstring>

namespace accel {

std::uint64_t detail::agreed_seed(const Communicator& communicator) {
  // A seed is 64 bits without a sign; a tensor holds 64 with one.
  const std::uint64_t mine = at::detail::getDefaultCPUGenerator().current_seed();
  std::int64_t bits = 0;
  std::memcpy(&bits, &mine, sizeof bits);
  bits = communicator.broadcast(at::full({}, bits, at::kLong), 0).item<int64_t>();
  std::uint64_t agreed = 0;
  std::memcpy(&agreed, &bits, sizeof agreed);
  return agreed;
}

}  // namespace accel
