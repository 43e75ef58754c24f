// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How a concept says, in the compiler's own error message, what it needs: it is written as
//
//     template <class Placement, class Backend>
//     concept OffloadsOn = !Placement::offloads || Backend::shards ||
//                          detail::unmet<"accel: <what> needs <what>; "
//                                        "use <fix>", Placement, Backend>;
//
// clang prints the sentence as a note of its own; g++ prints the source of the disjunction that has
// no true operand, which is why the sentence stands there as a literal and not behind a name. Both
// do so at their default settings.
#pragma once

#include <accel/detail/fixed_string.hpp>

namespace accel::detail {

/// Never true. `Sentence` is what the reader of the error needs to know, `Types` what it is about.
template <fixed_string Sentence, class... Types>
inline constexpr bool unmet = false;

}  // namespace accel::detail
