// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/safetensors.hpp.
#include <accel/checkpoint/safetensors.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ops/empty.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string_view>

namespace accel {
namespace detail {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct TypeName {
  at::ScalarType type;
  std::string_view name;
};

constexpr TypeName type_names[] = {
    {at::kBool, "BOOL"},
    {at::kByte, "U8"},
    {at::kChar, "I8"},
    {at::kShort, "I16"},
    {at::kUInt16, "U16"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kInt, "I32"},
    {at::kUInt32, "U32"},
    {at::kFloat, "F32"},
    {at::kComplexFloat, "C64"},
    {at::kDouble, "F64"},
    {at::kLong, "I64"},
    {at::kUInt64, "U64"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
};
static_assert(std::size(type_names) == std::size(safetensors_types));

SafetensorsEntry entry_of(const std::string& name, const at::Tensor& tensor,
                          const std::string& file) {
  if (!tensor.defined() || tensor.is_meta()) {
    fail(ErrorCategory::checkpoint, "{}: tensor '{}' has no data ({})", file, name,
         tensor.defined() ? "it is on the meta device" : "it is undefined");
  }
  if (tensor.layout() != at::kStrided) {
    fail(ErrorCategory::checkpoint,
         "{}: tensor '{}' is sparse, which the format cannot hold; save its to_dense()", file,
         name);
  }
  const auto* found = std::ranges::find(type_names, tensor.scalar_type(), &TypeName::type);
  if (found == std::end(type_names)) {
    fail(ErrorCategory::checkpoint,
         "{}: tensor '{}' is of type {}, which the format cannot hold; convert it first", file,
         name, c10::toString(tensor.scalar_type()));
  }
  return {name, std::string(found->name), tensor.sizes().vec()};
}

}  // namespace

at::ScalarType scalar_type_of(const SafetensorsEntry& entry) {
  return std::ranges::find(type_names, entry.type, &TypeName::name)->type;
}

at::Tensor read_tensor(const InputFile& file, const SafetensorsHeader& header,
                       const SafetensorsEntry& entry) {
  const auto type = scalar_type_of(entry);
  auto tensor = at::empty(entry.shape, at::TensorOptions().dtype(type));
  const auto size = static_cast<std::size_t>(entry.end - entry.begin);
  auto* bytes = static_cast<unsigned char*>(tensor.data_ptr());
  file.read(header.data_begin + entry.begin, bytes, size);
  // A bool of another value than 0 and 1 is undefined behaviour in every kernel that reads it.
  if (type == at::kBool && std::any_of(bytes, bytes + size, [](auto byte) { return byte > 1; })) {
    fail(ErrorCategory::checkpoint,
         "{}: tensor '{}' of type BOOL has a byte that is neither 0 nor 1", file.path().string(),
         entry.name);
  }
  return tensor;
}

}  // namespace detail

std::string shape_text(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void write_safetensors(OutputFile& file, const NamedTensors& tensors,
                       SafetensorsMetadata metadata) {
  const auto path = file.target().string();
  std::vector<SafetensorsEntry> entries;
  std::map<std::string_view, const at::Tensor*> by_name;
  entries.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    entries.push_back(detail::entry_of(name, tensor, path));
    by_name.emplace(name, &tensor);
  }
  metadata.emplace("format", "pt");
  const auto header = lay_out_safetensors(std::move(entries), std::move(metadata), path);
  file.write(format_safetensors_header(header, path));
  for (const auto& entry : header.tensors) {
    // The dense copy lives for one tensor only. detach: a copy to the CPU is not to be recorded for
    // backward.
    const auto dense =
        by_name.at(entry.name)->detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg();
    file.write(dense.const_data_ptr(), dense.nbytes());
  }
}

void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      SafetensorsMetadata metadata) {
  OutputFile file(path);
  write_safetensors(file, tensors, std::move(metadata));
  file.commit();
  sync_folder(path.parent_path());
}

Safetensors load_safetensors(const std::filesystem::path& path) {
  const InputFile file(path);
  auto header = read_safetensors_header(file);
  Safetensors loaded{{}, std::move(header.metadata), path.string()};
  for (const auto& entry : header.tensors) {
    loaded.tensors.emplace(entry.name, detail::read_tensor(file, header, entry));
  }
  return loaded;
}

}  // namespace accel
