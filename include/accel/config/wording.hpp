// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Words for messages about text that a person wrote: how it is quoted, and which known word it may
// have been meant as. Used for keys, values and flags.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace accel::detail {

/// The candidate with the fewest typing mistakes (insert, leave out, replace, swap neighbours; case
/// does not count) from `typed`, or "" if none is near enough to be what was meant. Of equally near
/// ones, the first.
std::string_view nearest(std::string_view typed, std::span<const std::string_view> candidates);

/// "; did you mean 'x'?", or "".
std::string did_you_mean(std::string_view typed, std::span<const std::string_view> candidates);

/// `text` in single quotes, on one line and not longer than a line: control characters are escaped,
/// a long text is cut.
std::string in_quotes(std::string_view text);

}  // namespace accel::detail
