// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// In which type gradients travel between the ranks of data-parallel training. The precision policy
// says one (`reduce_type`), and a communication hook with PyTorch's names may say a smaller one.
// Used by ddp.hpp and sharded/.
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace accel {

/// PyTorch's communication hooks that compress. With the first two a bucket is cast, divided by the
/// number of ranks, summed in that type, and cast back: half the bytes, and the rounding of the
/// type. `power_sgd` is power_sgd.hpp.
enum class CommHook { none, fp16_compress, bf16_compress, power_sgd };

[[nodiscard]] std::string_view name_of(CommHook hook);

/// The type in which a bucket of gradients is summed over the ranks.
struct GradientWire {
  c10::ScalarType parameter_type = c10::ScalarType::Float;  ///< of the precision policy
  c10::ScalarType reduce_type = c10::ScalarType::Float;     ///< of the precision policy
  CommHook hook = CommHook::none;

  /// For gradients of `type`. A hook compresses what is wider than 16 bits; the policy speaks of
  /// its own parameter type only, so that float64 parameters stay exact beside it.
  [[nodiscard]] c10::ScalarType type_for(c10::ScalarType type) const;

  /// Whether gradients of any type are cast at all.
  [[nodiscard]] bool casts() const noexcept {
    return hook == CommHook::fp16_compress || hook == CommHook::bf16_compress ||
           parameter_type != reduce_type;
  }
};

}  // namespace accel
