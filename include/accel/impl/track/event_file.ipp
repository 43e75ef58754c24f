// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/event_file.hpp>

#include <array>

namespace accel::detail {
namespace {

constexpr std::array<std::uint32_t, 256> crc32c_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder & 1u) != 0 ? (remainder >> 1) ^ 0x82F63B78u : remainder >> 1;
    table[byte] = remainder;
  }
  return table;
}();

template <class Unsigned>
void append_little_endian(std::string& out, Unsigned value) {
  for (std::size_t byte = 0; byte < sizeof value; ++byte)
    out.push_back(static_cast<char>(static_cast<unsigned char>(value >> (8 * byte))));
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t remainder = 0xFFFFFFFFu;
  for (const char c : bytes)
    remainder =
        crc32c_table[(remainder ^ static_cast<unsigned char>(c)) & 0xFFu] ^ (remainder >> 8);
  return ~remainder;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

std::string framed_record(std::string_view payload) {
  std::string record;
  record.reserve(payload.size() + 16);
  append_little_endian(record, static_cast<std::uint64_t>(payload.size()));
  append_little_endian(record, masked_crc32c(record));
  record.append(payload);
  append_little_endian(record, masked_crc32c(payload));
  return record;
}

}  // namespace accel::detail
