// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Where an axis has its ticks and what they are called: round numbers, few, evenly spread. Used by
// chart.hpp.
#pragma once

#include <string>
#include <vector>

namespace accel::detail {

struct Tick {
  double value;
  std::string label;
};

/// One axis: the range that is shown, and the ticks inside it.
struct Axis {
  double low;
  double high;
  std::vector<Tick> ticks;
};

/// Ticks at multiples of 1, 2 or 5 times a power of ten, about `wanted` of them. With `rounded`,
/// the range is widened to the ticks around it. With `whole`, no tick falls between whole numbers.
/// An empty range is opened around its value.
Axis linear_axis(double low, double high, int wanted, bool rounded, bool whole);

/// The same for a logarithmic axis, widened to its ticks: powers of ten (thinned to about
/// `wanted`), or 1, 2 and 5 times them if there are few. Needs 0 < low <= high.
Axis logarithmic_axis(double low, double high, int wanted);

}  // namespace accel::detail
