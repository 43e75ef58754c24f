// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/object_collectives.hpp>

#include <ATen/ATen.h>

#include <cstring>

namespace accel {

std::string detail::broadcast_bytes(const Communicator& communicator, const std::string& bytes,
                                    int root, const CallSite& where) {
  const auto mine = at::full({}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  const auto length = communicator.broadcast(mine, root, where).item<std::int64_t>();
  auto buffer = at::zeros({length}, at::kByte);
  if (communicator.rank() == root)
    std::memcpy(buffer.mutable_data_ptr(), bytes.data(), bytes.size());
  buffer = communicator.broadcast(buffer, root, where);
  return {static_cast<const char*>(buffer.const_data_ptr()), static_cast<std::size_t>(length)};
}

}  // namespace accel
