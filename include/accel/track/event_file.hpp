// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The framing of TensorFlow's record files, which TensorBoard reads: each record carries its length
// and two checksums. What is in a record is tensorboard.hpp's business.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accel::detail {

/// CRC-32C (Castagnoli) of the bytes, as in RFC 3720.
std::uint32_t crc32c(std::string_view bytes) noexcept;

/// The checksum as record files store it: rotated and offset, since a checksum of data that holds
/// checksums is weak.
std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

/// length (8 bytes), its checksum (4), payload, its checksum (4); little endian.
std::string framed_record(std::string_view payload);

}  // namespace accel::detail
