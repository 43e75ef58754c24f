// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Sums and other reductions of the ranks' values, in rank order: r0 + r1, then + r2, and so on,
// whatever the size of a chunk and whoever computes it. So results are the same bits on every rank
// and in every run. Plain loops that the compiler vectorises; nothing of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace accel::detail {

/// How the bytes of a tensor are read when they are reduced.
enum class Element : std::uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f16,
  bf16,
  f32,
  f64,
  c16,    ///< complex of two f16
  c32,    ///< complex of two f32
  c64,    ///< complex of two f64
  bytes,  ///< only copied
};

/// What is computed: c10d's reduce operations.
enum class Combine : std::uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };

[[nodiscard]] std::size_t size_of(Element element);
[[nodiscard]] const char* name_of(Element element);
[[nodiscard]] const char* name_of(Combine combine);

/// out[i] = combine of inputs[r][i] over r in order, for `count` elements. `out` may be one of the
/// inputs, and overlaps them in no other way. f16 and bf16 are computed in f32 and rounded once (to
/// nearest even); integers wrap; `min` and `max` of floats give NaN where one is NaN. An average
/// divides the sum by `divisor`.
using Reduce = void (*)(std::byte* out, std::span<const std::byte* const> inputs, std::size_t count,
                        std::size_t divisor);

/// The function for a type, or nullptr where the operation has no meaning there: bits of floats, an
/// order of complex numbers, an average of integers.
[[nodiscard]] Reduce reduce_function(Element element, Combine combine);

}  // namespace accel::detail
