// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A hash that is the same on every machine, which std::hash need not be: for what ranks compare, and
// for seeds.
#pragma once

#include <cstdint>

namespace accel::detail {

/// FNV-1a of 64 bits (Fowler, Noll, Vo), over numbers.
class Fnv1a {
 public:
  constexpr void add(std::uint64_t number) noexcept { value_ = (value_ ^ number) * 1099511628211u; }
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

}  // namespace accel::detail
