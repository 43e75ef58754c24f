// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_tensors.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>

namespace accel::detail {

Element element_of(at::ScalarType type) {
  switch (type) {
    case at::kBool: return Element::boolean;
    case at::kByte: return Element::u8;
    case at::kChar: return Element::i8;
    case at::kUInt16: return Element::u16;
    case at::kShort: return Element::i16;
    case at::kUInt32: return Element::u32;
    case at::kInt: return Element::i32;
    case at::kUInt64: return Element::u64;
    case at::kLong: return Element::i64;
    case at::kHalf: return Element::f16;
    case at::kBFloat16: return Element::bf16;
    case at::kFloat: return Element::f32;
    case at::kDouble: return Element::f64;
    case at::kComplexHalf: return Element::c16;
    case at::kComplexFloat: return Element::c32;
    case at::kComplexDouble: return Element::c64;
    default: return Element::bytes;
  }
}

const at::Tensor& only(const ShmCall& call, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1)
    fail(ErrorCategory::usage, "accel: rank {}: {} takes a list of one tensor, and got {}",
         call.rank, call.name, tensors.size());
  return tensors.front();
}

const std::vector<at::Tensor>& one_for_each(const ShmCall& call,
                                            const std::vector<std::vector<at::Tensor>>& lists,
                                            int size) {
  if (lists.size() != 1 || lists.front().size() != static_cast<std::size_t>(size))
    fail(ErrorCategory::usage,
         "accel: rank {}: {} takes one list of {} tensors, one for each rank, and got {} lists{}",
         call.rank, call.name, size, lists.size(),
         lists.size() == 1 ? fmt::format(" of {} tensors", lists.front().size()) : "");
  return lists.front();
}

void require_as_many(const ShmCall& call, const std::vector<at::Tensor>& inputs,
                     const std::vector<at::Tensor>& outputs) {
  if (inputs.size() != outputs.size())
    fail(ErrorCategory::usage, "accel: rank {}: {} of {} tensors takes as many outputs, and got {}",
         call.rank, call.name, inputs.size(), outputs.size());
}

void require_sendable(const ShmCall& call, const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided || !tensor.device().is_cpu())
    fail(ErrorCategory::usage, "accel: rank {}: {} takes strided CPU tensors, and got {}",
         call.rank, call.name,
         tensor.defined() ? fmt::format("one of layout {} on {}", c10::str(tensor.layout()),
                                        tensor.device().str())
                          : "an undefined one");
  if (is_written && at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    fail(
        ErrorCategory::usage,
        "accel: rank {}: {} writes to a tensor of which several elements share memory (an expanded "
        "one); give it a clone",
        call.rank, call.name);
}

void require_apart(const ShmCall& call, const std::vector<at::Tensor>& outputs) {
  std::vector<std::pair<const char*, const char*>> places;
  for (const auto& output : outputs) {
    if (output.numel() == 0 || !output.is_contiguous()) continue;
    const auto* begin = static_cast<const char*>(output.const_data_ptr());
    places.emplace_back(begin, begin + output.nbytes());
  }
  std::ranges::sort(places);
  for (std::size_t i = 1; i < places.size(); ++i)
    if (places[i].first < places[i - 1].second)
      fail(ErrorCategory::usage,
           "accel: rank {}: {} writes to several tensors that share memory; give each its own",
           call.rank, call.name);
}

void require_alike(const ShmCall& call, const at::Tensor& tensor, const at::Tensor& other,
                   std::int64_t times) {
  if (tensor.scalar_type() == other.scalar_type() && tensor.numel() * times == other.numel())
    return;
  fail(ErrorCategory::usage,
       "accel: rank {}: {} with a tensor of {} x {} takes {} x {} beside it, and got {} x {}",
       call.rank, call.name, tensor.numel(), c10::toString(tensor.scalar_type()),
       tensor.numel() * times, c10::toString(tensor.scalar_type()), other.numel(),
       c10::toString(other.scalar_type()));
}

Combine combine_of(const ShmCall& call, const c10d::ReduceOp& op, at::ScalarType type) {
  Combine combine{};
  switch (op.op_) {
    case c10d::ReduceOp::SUM: combine = Combine::sum; break;
    case c10d::ReduceOp::AVG: combine = Combine::average; break;
    case c10d::ReduceOp::PRODUCT: combine = Combine::product; break;
    case c10d::ReduceOp::MIN: combine = Combine::min; break;
    case c10d::ReduceOp::MAX: combine = Combine::max; break;
    case c10d::ReduceOp::BAND: combine = Combine::bit_and; break;
    case c10d::ReduceOp::BOR: combine = Combine::bit_or; break;
    case c10d::ReduceOp::BXOR: combine = Combine::bit_xor; break;
    default:
      fail(ErrorCategory::usage,
           "accel: rank {}: {} has no reduction number {} (PREMUL_SUM is NCCL's)", call.rank,
           call.name, static_cast<int>(op.op_));
  }
  if (!reduce_function(element_of(type), combine))
    fail(ErrorCategory::usage, "accel: rank {}: {} of {} values by {} has no such value; {}",
         call.rank, call.name, c10::toString(type), name_of(combine),
         combine == Combine::average ? "sum them, or convert to a floating type first"
                                     : "convert them first");
  return combine;
}

FlatTensor::FlatTensor(const at::Tensor& tensor, Use use)
    : tensor_(tensor.detach()), row_(tensor_) {
  const bool lies_in_a_row = row_.is_contiguous() && !row_.is_conj() && !row_.is_neg();
  if (!lies_in_a_row && use == Use::write)
    row_ =
        at::empty(tensor_.sizes(), tensor_.options().memory_format(at::MemoryFormat::Contiguous));
  else if (!lies_in_a_row)
    row_ = tensor_.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
  data_ = static_cast<std::byte*>(use == Use::read ? const_cast<void*>(row_.const_data_ptr())
                                                   : row_.mutable_data_ptr());
}

// Dimensions of one element may have any stride, which a view would keep.
at::Tensor FlatTensor::row() const { return row_.as_strided({row_.numel()}, {1}); }

std::size_t FlatTensor::count() const {
  return element() == Element::bytes ? row_.nbytes() : static_cast<std::size_t>(row_.numel());
}

bool FlatTensor::is_entangled_with(const std::byte* other, std::size_t other_bytes) const {
  const bool overlaps = data_ < other + other_bytes && other < data_ + bytes();
  return overlaps && data_ != other;
}

void FlatTensor::detach() {
  row_ = row_.clone(at::MemoryFormat::Contiguous);
  data_ = static_cast<std::byte*>(row_.mutable_data_ptr());
}

void FlatTensor::write_back() {
  if (!row_.is_same(tensor_)) tensor_.copy_(row_);
}

}  // namespace accel::detail
