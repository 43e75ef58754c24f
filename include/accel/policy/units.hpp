// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Units: the parts of a module that are gathered, reduced or recomputed together. An argument of
// sharded<Stage, Units> (backend.hpp) and of recomputed<Units> (extras.hpp). Which modules they are
// in a given model is the engine's matter.
//
// When to use which
//   wrap_auto        the default: the repeated children of a list or sequence, as the blocks of a
//                    transformer are
//   wrap<BlockImpl>  what repeats has a class of its own, and you want to be sure that it is a unit
//   wrap_by_size     nothing repeats: consecutive modules, until a number of parameters is reached
#pragma once

#include <accel/detail/fact.hpp>
#include <accel/detail/spelling.hpp>
#include <accel/detail/type_list.hpp>
#include <accel/detail/unmet.hpp>

#include <string_view>
#include <type_traits>

namespace accel {

/// How the modules of a unit are found.
enum class unit_rule { automatic, by_class, by_size };

/// The facts of units:
///  - `unit_rule rule`, `name`; the type is empty.
template <class Units>
concept HasUnitFacts = std::is_empty_v<Units> && detail::Named<Units> &&
                       requires { requires detail::is_fact<Units::rule, unit_rule>; };

/// A way to cut a module into units.
template <class Units>
concept UnitPolicy =
    HasUnitFacts<Units> || detail::unmet<"accel: the Units argument needs a way to cut a module; "
                                         "use wrap_auto, wrap<BlockImpl> or wrap_by_size",
                                         Units>;

/// The arguments of wrap<...>: at least one module class, each once. A class may be incomplete.
template <class... Modules>
concept ModuleClasses =
    (sizeof...(Modules) > 0 && (std::is_class_v<Modules> && ...) && detail::distinct<Modules...>) ||
    detail::unmet<"accel: wrap<...> needs module classes, each named once; "
                  "use wrap<BlockImpl>, or wrap_auto, which finds them",
                  Modules...>;

/// One unit for each module of any of these classes.
template <class... Modules>
  requires ModuleClasses<Modules...>
struct wrap {
  static constexpr unit_rule rule = unit_rule::by_class;
  static constexpr std::string_view name =
      detail::text<"wrap<" + detail::type_names<Modules...>() + ">">;
};

/// Consecutive modules until the unit holds a number of parameters, which is a run-time option.
struct wrap_by_size {
  static constexpr unit_rule rule = unit_rule::by_size;
  static constexpr std::string_view name = "wrap_by_size";
};

/// One unit for each repeated child of a list or sequence, and one for what is left over.
struct wrap_auto {
  static constexpr unit_rule rule = unit_rule::automatic;
  static constexpr std::string_view name = "wrap_auto";
};

}  // namespace accel
