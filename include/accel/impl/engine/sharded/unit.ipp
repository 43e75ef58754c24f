// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/unit.hpp>

#include <ATen/ATen.h>

#include <fmt/format.h>

namespace accel::detail {

ShardedParameter* Unit::parameter_of(const at::Tensor& tensor) {
  for (auto& parameter : parameters)
    if (parameter.offset == tensor.storage_offset() && tensor.sizes() == parameter.sizes &&
        tensor.strides() == parameter.strides)
      return &parameter;
  return nullptr;
}

FlatStorage& Unit::gradient_shard() {
  auto& shard = gradients.shard;
  if (!shard.is_present()) {
    shard.allocate();
    shard.flat().zero_();
    shard.show();
  }
  return shard;
}

void ShardedParameter::show_gradient() {
  parameter.mutable_grad() = gradient;
  piece.mutable_grad() = gradient_piece;
}

std::string Unit::title() const {
  return name.empty() ? "the root unit" : fmt::format("the unit '{}'", name);
}

at::Tensor in_memory_order(const at::Tensor& tensor, at::IntArrayRef strides) {
  auto dense = tensor;
  if (tensor.strides() != strides || !tensor.is_non_overlapping_and_dense()) {
    dense = at::empty_strided(tensor.sizes(), strides, tensor.options());
    dense.copy_(tensor);
  }
  return dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
}

}  // namespace accel::detail
