// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: eight bytes of length, then JSON that gives each tensor's type,
// shape and span of the data behind it. Lays tensors out, formats the header, and reads one
// strictly. Holds no tensor and needs no LibTorch; safetensors.hpp puts the data behind it.
#pragma once

#include <accel/checkpoint/file.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// An element type of the format.
struct SafetensorsType {
  std::string_view name;  ///< as in the file, e.g. "BF16"
  std::uint64_t bytes;    ///< of one element
};

/// The types that are read and written, in the order in which the reference implementation lays
/// tensors out: wider before narrower, so that each tensor is aligned for its own type.
inline constexpr SafetensorsType safetensors_types[] = {
    {"U64", 8},     {"I64", 8},     {"F64", 8}, {"C64", 8}, {"F32", 4},  {"U32", 4},
    {"I32", 4},     {"BF16", 2},    {"F16", 2}, {"U16", 2}, {"I16", 2},  {"F8_E8M0", 1},
    {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},  {"U8", 1},  {"BOOL", 1},
};

/// Free text beside the tensors. `save_safetensors` puts {"format": "pt"} there, which Python's
/// tools look for.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// One tensor, as the header describes it.
struct SafetensorsEntry {
  std::string name;
  std::string type;  ///< a name of `safetensors_types`
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< in bytes, from the end of the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their data, without gaps
  SafetensorsMetadata metadata;
  std::uint64_t data_begin = 0;  ///< bytes of the file before the data; known after reading
};

/// Puts the tensors in file order (wider types first, then by name) and gives each its span.
/// Refuses a name that is there twice, the reserved name `__metadata__`, an unknown type and a
/// shape that overflows. `file` is for messages.
SafetensorsHeader lay_out_safetensors(std::vector<SafetensorsEntry> tensors,
                                      SafetensorsMetadata metadata, const std::string& file);

/// The bytes that stand before the data: the length, and the JSON padded with spaces to a multiple
/// of eight.
std::string format_safetensors_header(const SafetensorsHeader& header, const std::string& file);

/// How many bytes of a file stand before its data, from its first eight bytes (or fewer, if it has
/// fewer).
std::uint64_t safetensors_data_begin(std::string_view first_bytes, std::uint64_t file_size,
                                     const std::string& file);

/// Reads a header strictly. `first_bytes` holds at least everything before the data. Refuses,
/// naming tensor and file: a truncated file, a header longer than the file, JSON that is broken or
/// says a thing twice, an unknown type, a shape that overflows or does not fill its span, spans
/// that overlap, leave a hole, or pass the end.
SafetensorsHeader parse_safetensors_header(std::string_view first_bytes, std::uint64_t file_size,
                                           const std::string& file);

/// Reads the header of a file, and nothing behind it; as strictly.
SafetensorsHeader read_safetensors_header(const InputFile& file);

}  // namespace accel
