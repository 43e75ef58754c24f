// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// UnitPolicy and the class template wrap.

#include "archetype.hpp"

#include <accel/policy/stage.hpp>
#include <accel/policy/units.hpp>

namespace accel::testing {
namespace {

struct Incomplete;
struct Block {};
enum class Colour {};

// Shipped.
static_assert(UnitPolicy<wrap_auto>);
static_assert(UnitPolicy<wrap_by_size>);
static_assert(UnitPolicy<wrap<Block>>);
static_assert(UnitPolicy<wrap<Block, Incomplete>>);
static_assert(wrap_auto::rule == unit_rule::automatic);
static_assert(wrap_by_size::rule == unit_rule::by_size);
static_assert(wrap<Block>::rule == unit_rule::by_class);

// Archetype.
struct has_rule {
  static constexpr unit_rule rule = unit_rule::automatic;
};
using least = archetype<has_name, has_rule>;
static_assert(UnitPolicy<least>);

// Near misses.
struct int_rule {
  static constexpr int rule = 0;
};
struct with_state : least {
  int state = 0;
};
static_assert(!UnitPolicy<least::without<has_name>>);
static_assert(!UnitPolicy<least::without<has_rule>>);
static_assert(!UnitPolicy<least::with<has_name, empty_name>>);
static_assert(!UnitPolicy<least::with<has_rule, int_rule>>);
static_assert(!UnitPolicy<with_state>);
static_assert(!UnitPolicy<Block>);
static_assert(!UnitPolicy<zero3>);
static_assert(!UnitPolicy<int>);

// What wrap takes.
static_assert(Accepts<wrap, Block>);
static_assert(Accepts<wrap, Incomplete>);
static_assert(!Accepts<wrap>);
static_assert(!Accepts<wrap, Block, Block>);
static_assert(!Accepts<wrap, Block, Incomplete, Block>);
static_assert(!Accepts<wrap, int>);
static_assert(!Accepts<wrap, Colour>);
static_assert(!Accepts<wrap, Block*>);

}  // namespace
}  // namespace accel::testing
