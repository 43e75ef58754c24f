// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// AccumulationPolicy and the class template accumulate.

#include "archetype.hpp"

#include <accel/policy/accumulation.hpp>
#include <accel/policy/precision.hpp>

#include <cstdint>
#include <limits>

namespace accel::testing {
namespace {

// Shipped, and the facts that engines read.
static_assert(AccumulationPolicy<accumulate<1>>);
static_assert(AccumulationPolicy<accumulate<4>>);
static_assert(AccumulationPolicy<accumulate<std::numeric_limits<std::int64_t>::max()>>);
static_assert(AccumulationPolicy<accumulate<dynamic>>);
static_assert(accumulate<4>::is_static && accumulate<4>::steps == 4);
static_assert(!accumulate<dynamic>::is_static && accumulate<dynamic>::steps == 0);
static_assert(std::same_as<accumulate<4>, accumulate<4U>>);

// Archetype.
struct has_axis {
  using axis = accumulation_axis;
};
template <bool Fact>
struct known {
  static constexpr bool is_static = Fact;
};
template <std::int64_t Steps>
struct window {
  static constexpr std::int64_t steps = Steps;
};
using has_is_static = known<true>;
using has_steps = window<1>;
using least = archetype<has_axis, has_name, has_is_static, has_steps>;
static_assert(AccumulationPolicy<least>);

// Near misses: a fact is missing.
static_assert(!AccumulationPolicy<least::without<has_axis>>);
static_assert(!AccumulationPolicy<least::without<has_name>>);
static_assert(!AccumulationPolicy<least::without<has_is_static>>);
static_assert(!AccumulationPolicy<least::without<has_steps>>);

// A fact is of another type.
struct other_axis {
  using axis = precision_axis;
};
struct int_is_static {
  static constexpr int is_static = 1;
};
struct int_steps {
  static constexpr int steps = 1;
};
static_assert(!AccumulationPolicy<least::with<has_axis, other_axis>>);
static_assert(!AccumulationPolicy<least::with<has_name, empty_name>>);
static_assert(!AccumulationPolicy<least::with<has_is_static, int_is_static>>);
static_assert(!AccumulationPolicy<least::with<has_steps, int_steps>>);

struct with_state : least {
  int state = 0;
};
static_assert(!AccumulationPolicy<with_state>);
static_assert(!AccumulationPolicy<int>);
static_assert(!AccumulationPolicy<fp32>);

// A static window has a length, another has none.
static_assert(AccumulationPolicy<archetype<has_axis, has_name, known<false>, window<0>>>);
static_assert(!AccumulationPolicy<least::with<has_steps, window<0>>>);
static_assert(!AccumulationPolicy<least::with<has_steps, window<-1>>>);
static_assert(!AccumulationPolicy<least::with<has_is_static, known<false>>>);

// What accumulate takes.
template <std::int64_t Steps, template <std::int64_t> class Template = accumulate>
concept AcceptsSteps = requires { typename Template<Steps>; };
static_assert(AcceptsSteps<1>);
static_assert(AcceptsSteps<dynamic>);
static_assert(!AcceptsSteps<0>);
static_assert(!AcceptsSteps<-1>);
static_assert(!AcceptsSteps<dynamic + 1>);

}  // namespace
}  // namespace accel::testing
