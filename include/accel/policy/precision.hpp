// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The Precision axis: the number types of parameters, of computation and of reduction, and what
// keeps 16-bit numbers from losing gradients. Owns the concept and the policies; autocast, the
// scaler and the master copies are engines.
//
// When to use which
//   fp32                     the default, and what to compare the others with
//   bf16                     parameters stay fp32; matrix products run in bfloat16 (autocast)
//   fp16                     the same in float16, whose small range needs a loss scaler: for
//                            hardware without bfloat16
//   bf16_true                parameters in bfloat16 too: half the memory, but small updates are
//                            rounded away
//   with_masters<bf16_true>  they are not: the optimizer steps on fp32 copies
// Autocast runs exactly where compute_type differs from parameter_type.
#pragma once

#include <accel/detail/fact.hpp>
#include <accel/detail/spelling.hpp>
#include <accel/detail/unmet.hpp>
#include <accel/policy/axis.hpp>
#include <accel/policy/element_type.hpp>

#include <concepts>
#include <string_view>
#include <type_traits>

namespace accel {

/// The facts of a precision:
///  - `axis` is precision_axis, `name` its spelling; the type is empty.
///  - `element_type parameter_type`, `compute_type`, `reduce_type`: of the parameters, of matrix
///    products and convolutions, and of the gradients while ranks sum them.
///  - `bool needs_scaler`: the loss is scaled up, and steps whose gradients overflowed are skipped.
///  - `bool master_weights`: the optimizer steps on fp32 copies of 16-bit parameters.
template <class Precision>
concept HasPrecisionFacts = std::is_empty_v<Precision> && detail::Named<Precision> && requires {
  requires std::same_as<typename Precision::axis, precision_axis>;
  requires detail::is_fact<Precision::parameter_type, element_type>;
  requires detail::is_fact<Precision::compute_type, element_type>;
  requires detail::is_fact<Precision::reduce_type, element_type>;
  requires detail::is_fact<Precision::needs_scaler, bool>;
  requires detail::is_fact<Precision::master_weights, bool>;
};

/// Autocast casts float32 down to 16 bit, and nothing else.
template <class Precision>
concept ComputesByAutocast =
    Precision::compute_type == Precision::parameter_type ||
    (Precision::parameter_type == element_type::float32 && is_16_bit(Precision::compute_type)) ||
    detail::unmet<"accel: autocast needs float32 parameters and a 16-bit compute type; "
                  "use compute_type = parameter_type",
                  Precision>;

/// The scaler divides the gradients by its scale, which needs the range of float32.
template <class Precision>
concept ScalesFloat16 =
    !Precision::needs_scaler ||
    (Precision::parameter_type == element_type::float32 &&
     Precision::compute_type == element_type::float16) ||
    detail::unmet<"accel: a loss scaler needs float16 computation on float32 parameters; "
                  "use needs_scaler = false",
                  Precision>;

/// Only a parameter that is rounded needs a copy that is not.
template <class Precision>
concept CopiesOnly16Bit = !Precision::master_weights || is_16_bit(Precision::parameter_type) ||
                          detail::unmet<"accel: master weights need 16-bit parameters; "
                                        "use master_weights = false",
                                        Precision>;

/// A policy of the Precision axis, shipped or your own.
template <class Precision>
concept PrecisionPolicy =
    (HasPrecisionFacts<Precision> ||
     detail::unmet<"accel: the Precision argument needs a policy of the precision axis; "
                   "use fp32, bf16, fp16, bf16_true, or a type with these facts",
                   Precision>) &&
    ComputesByAutocast<Precision> && ScalesFloat16<Precision> && CopiesOnly16Bit<Precision>;

/// Everything in float32.
struct fp32 {
  using axis = precision_axis;
  static constexpr std::string_view name = "fp32";
  static constexpr element_type parameter_type = element_type::float32;
  static constexpr element_type compute_type = element_type::float32;
  static constexpr element_type reduce_type = element_type::float32;
  static constexpr bool needs_scaler = false;
  static constexpr bool master_weights = false;
};

/// Autocast to bfloat16.
struct bf16 {
  using axis = precision_axis;
  static constexpr std::string_view name = "bf16";
  static constexpr element_type parameter_type = element_type::float32;
  static constexpr element_type compute_type = element_type::bfloat16;
  static constexpr element_type reduce_type = element_type::float32;
  static constexpr bool needs_scaler = false;
  static constexpr bool master_weights = false;
};

/// Autocast to float16, with a loss scaler.
struct fp16 {
  using axis = precision_axis;
  static constexpr std::string_view name = "fp16";
  static constexpr element_type parameter_type = element_type::float32;
  static constexpr element_type compute_type = element_type::float16;
  static constexpr element_type reduce_type = element_type::float32;
  static constexpr bool needs_scaler = true;
  static constexpr bool master_weights = false;
};

/// Parameters, gradients and optimizer state in bfloat16, without autocast.
struct bf16_true {
  using axis = precision_axis;
  static constexpr std::string_view name = "bf16_true";
  static constexpr element_type parameter_type = element_type::bfloat16;
  static constexpr element_type compute_type = element_type::bfloat16;
  static constexpr element_type reduce_type = element_type::bfloat16;
  static constexpr bool needs_scaler = false;
  static constexpr bool master_weights = false;
};

/// The precisions that with_masters<...> takes.
template <class Precision>
concept TakesMasters =
    (HasPrecisionFacts<Precision> && is_16_bit(Precision::parameter_type) &&
     !Precision::master_weights) ||
    detail::unmet<"accel: with_masters<...> needs a precision with 16-bit parameters; "
                  "use with_masters<bf16_true>, or bf16, whose parameters are fp32",
                  Precision>;

/// `Precision`, with fp32 copies of the parameters in the optimizer, whose state is fp32 then.
template <class Precision>
  requires TakesMasters<Precision>
struct with_masters {
  using axis = precision_axis;
  static constexpr std::string_view name =
      detail::text<"with_masters<" + detail::name_of<Precision>() + ">">;
  static constexpr element_type parameter_type = Precision::parameter_type;
  static constexpr element_type compute_type = Precision::compute_type;
  static constexpr element_type reduce_type = Precision::reduce_type;
  static constexpr bool needs_scaler = Precision::needs_scaler;
  static constexpr bool master_weights = true;
};

}  // namespace accel
