// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The Accumulation axis: how many micro-batches make one optimizer step. Legal with every backend;
// who reduces when is the backend's matter (see ReducesOncePerWindow in compatible.hpp).
//
// When to use which
//   accumulate<1>        the default: a window is one batch, and the step has no code for more
//   accumulate<N>        the number belongs to the program
//   accumulate<dynamic>  the number comes from the configuration, or changes while training
#pragma once

#include <accel/detail/fact.hpp>
#include <accel/detail/spelling.hpp>
#include <accel/detail/unmet.hpp>
#include <accel/policy/axis.hpp>

#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace accel {

/// The facts of an accumulation:
///  - `axis` is accumulation_axis, `name` its spelling; the type is empty.
///  - `bool is_static`: the number of micro-batches is known to the compiler.
///  - `std::int64_t steps`: that number, at least 1; 0 if it is not static.
template <class Accumulation>
concept HasAccumulationFacts =
    std::is_empty_v<Accumulation> && detail::Named<Accumulation> && requires {
      requires std::same_as<typename Accumulation::axis, accumulation_axis>;
      requires detail::is_fact<Accumulation::is_static, bool>;
      requires detail::is_fact<Accumulation::steps, std::int64_t>;
    };

/// A window has at least one micro-batch, and a number that is not known is not stated.
template <class Accumulation>
concept CountsSteps =
    (Accumulation::is_static ? Accumulation::steps >= 1 : Accumulation::steps == 0) ||
    detail::unmet<"accel: an accumulation needs steps >= 1 if static, steps = 0 if not; "
                  "use accumulate<N> or accumulate<dynamic>",
                  Accumulation>;

/// A policy of the Accumulation axis, shipped or your own.
template <class Accumulation>
concept AccumulationPolicy =
    (HasAccumulationFacts<Accumulation> ||
     detail::unmet<"accel: the Accumulation argument needs a policy of the accumulation axis; "
                   "use accumulate<N> or accumulate<dynamic>, or a type with these facts",
                   Accumulation>) &&
    CountsSteps<Accumulation>;

/// The argument of accumulate<...> that leaves the number to run time; no number of micro-batches
/// equals it.
inline constexpr std::int64_t dynamic = std::numeric_limits<std::int64_t>::min();

/// The numbers that accumulate<...> takes.
template <std::int64_t Steps>
concept WindowLength = Steps >= 1 || Steps == dynamic ||
                       detail::unmet<"accel: accumulate<N> needs at least one micro-batch a step; "
                                     "use accumulate<1> for none more, or accumulate<dynamic>">;

/// `Steps` micro-batches per optimizer step.
template <std::int64_t Steps>
  requires WindowLength<Steps>
struct accumulate {
  using axis = accumulation_axis;
  static constexpr std::string_view name = [] {
    if constexpr (Steps == dynamic) {
      return std::string_view("accumulate<dynamic>");
    } else {
      return detail::text<"accumulate<" + detail::decimal<Steps>() + ">">;
    }
  }();
  static constexpr bool is_static = Steps != dynamic;
  static constexpr std::int64_t steps = is_static ? Steps : 0;
};

}  // namespace accel
