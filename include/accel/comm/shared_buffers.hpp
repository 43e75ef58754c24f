// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Buffers that lie in the memory of a host's ranks, for code that does not let one choose where its
// tensors lie: c10d::Reducer makes the buckets of gradients itself. Comes after communicator.hpp.
#pragma once

#include <accel/comm/communicator.hpp>

#include <cstddef>

namespace accel {

/// While it lives, large CPU tensors that this thread makes lie in shared memory, where the
/// communicator has such, and are reduced there without a copy. They may outlive both. Local.
class SharedBuffers {
 public:
  explicit SharedBuffers(const Communicator& communicator);
  ~SharedBuffers();
  SharedBuffers(const SharedBuffers&) = delete;
  SharedBuffers& operator=(const SharedBuffers&) = delete;

 private:
  void* previous_;
};

}  // namespace accel
