// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors as bytes in a row for shm_backend.hpp: what a dtype is to the kernels, which tensors an
// operation takes, and those that do not lie in a row.
#pragma once

#include <accel/comm/shm_kernels.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstddef>
#include <vector>

namespace accel::detail {

/// Whose operation it is, for the sentences.
struct ShmCall {
  const char* name;
  int rank;
};

[[nodiscard]] Element element_of(at::ScalarType type);

/// The one tensor of a list, where c10d's interface has room for one of each device. Throws
/// Error(usage) for another number.
[[nodiscard]] const at::Tensor& only(const ShmCall& call, const std::vector<at::Tensor>& tensors);

/// The one list, which has a tensor for each rank. Throws Error(usage) for other numbers.
[[nodiscard]] const std::vector<at::Tensor>& one_for_each(
    const ShmCall& call, const std::vector<std::vector<at::Tensor>>& lists, int size);

/// Throws Error(usage) unless there is an output for each input.
void require_as_many(const ShmCall& call, const std::vector<at::Tensor>& inputs,
                     const std::vector<at::Tensor>& outputs);

/// Throws Error(usage) for a tensor that is not a strided one of the CPU, or, if it `is_written`,
/// one in which several elements share memory.
void require_sendable(const ShmCall& call, const at::Tensor& tensor, bool is_written);

/// Throws Error(usage) where two tensors that are written share memory.
void require_apart(const ShmCall& call, const std::vector<at::Tensor>& outputs);

/// Throws Error(usage) unless `other` has the dtype of `tensor` and `times` its number of elements.
void require_alike(const ShmCall& call, const at::Tensor& tensor, const at::Tensor& other,
                   std::int64_t times = 1);

/// c10d's name for what is computed. Throws Error(usage) where it has no meaning for the dtype.
[[nodiscard]] Combine combine_of(const ShmCall& call, const c10d::ReduceOp& op,
                                 at::ScalarType type);

/// A tensor's values in a row: itself, or a copy where it lies otherwise.
class FlatTensor {
 public:
  enum class Use { read, write, change };
  FlatTensor(const at::Tensor& tensor, Use use);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] at::Tensor row() const;     ///< one dimension, stride 1, over the same memory
  [[nodiscard]] std::size_t count() const;  ///< of elements; bytes where they are only copied
  [[nodiscard]] std::size_t bytes() const { return row_.nbytes(); }
  [[nodiscard]] Element element() const { return element_of(row_.scalar_type()); }

  /// Whether the two share memory without being the same.
  [[nodiscard]] bool is_entangled_with(const std::byte* other, std::size_t bytes) const;

  /// Goes on with a copy, so that what else lies there may be changed.
  void detach();

  /// Gives the values to the tensor, where this is a copy.
  void write_back();

 private:
  at::Tensor tensor_, row_;
  std::byte* data_;
};

}  // namespace accel::detail
