// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The bytes of wire_batch.hpp: the length of the text, the text (CBOR), and the tensors as they
// lie, each at a multiple of 64 bytes, where a view of any dtype may begin.
#include <accel/data/wire_batch.hpp>

#include <ATen/ATen.h>

#include <cstring>

namespace accel::detail {

namespace {

constexpr std::int64_t alignment = 64;

std::int64_t aligned(std::int64_t length) {
  return (length + alignment - 1) / alignment * alignment;
}

}  // namespace

void WireWriter::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    facts.push_back(nullptr);
    return;
  }
  if (tensor.layout() != c10::kStrided || tensor.is_quantized())
    fail(ErrorCategory::data,
         "dispatch_batches sends dense tensors, and a batch has one of layout {} and type {}; "
         "make it dense in the collate function",
         c10::str(tensor.layout()), c10::toString(tensor.scalar_type()));
  facts.push_back(static_cast<int>(tensor.scalar_type()));
  facts.push_back(tensor.sizes().vec());
  tensors.push_back(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous());
}

at::Tensor WireWriter::bytes(const nlohmann::json& head) const {
  const auto text = nlohmann::json::to_cbor(nlohmann::json::array({head, facts}));
  const auto text_size = static_cast<std::int64_t>(text.size());
  auto size = aligned(static_cast<std::int64_t>(sizeof text_size) + text_size);
  for (const auto& tensor : tensors) size += aligned(static_cast<std::int64_t>(tensor.nbytes()));
  auto bytes = at::empty({size}, at::kByte);
  auto* out = static_cast<std::uint8_t*>(bytes.mutable_data_ptr());
  std::memcpy(out, &text_size, sizeof text_size);
  std::memcpy(out + sizeof text_size, text.data(), text.size());
  out += aligned(static_cast<std::int64_t>(sizeof text_size) + text_size);
  for (const auto& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(out, tensor.const_data_ptr(), tensor.nbytes());
    out += aligned(static_cast<std::int64_t>(tensor.nbytes()));
  }
  return bytes;
}

WireReader::WireReader(const at::Tensor& bytes) : bytes_(bytes) {
  const auto* in = static_cast<const std::uint8_t*>(bytes.const_data_ptr());
  std::int64_t text_size = 0;
  std::memcpy(&text_size, in, sizeof text_size);
  in += sizeof text_size;
  auto parts = nlohmann::json::from_cbor(in, in + text_size);
  head_ = std::move(parts.at(0));
  facts_ = std::move(parts.at(1));
  at_ = aligned(static_cast<std::int64_t>(sizeof text_size) + text_size);
}

void WireReader::get(at::Tensor& tensor) {
  const auto& type = fact();
  if (type.is_null()) {
    tensor = at::Tensor();
    return;
  }
  const auto dtype = static_cast<c10::ScalarType>(type.get<int>());
  const auto sizes = fact().get<std::vector<std::int64_t>>();
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  const auto length = count * static_cast<std::int64_t>(c10::elementSize(dtype));
  tensor = length == 0 ? at::empty(sizes, at::TensorOptions(dtype))
                       : bytes_.narrow(0, at_, length).view(dtype).view(sizes);
  at_ += aligned(length);
}

}  // namespace accel::detail
