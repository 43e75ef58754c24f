// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// From the values of a series to the points of its line: where it breaks, how it is smoothed, which
// points can be told apart. Used by chart.hpp, which places and draws them.
#pragma once

#include <vector>

namespace accel {
struct Series;
}

namespace accel::detail {

struct Point {
  double x;
  double y;
};

/// Unbroken runs of points, none of them empty.
using Segments = std::vector<std::vector<Point>>;

/// Breaks the line at each value that is not finite or, on a logarithmic axis, not positive.
Segments segments_of(const Series& series, bool log_y);

/// A running mean that forgets: each value keeps `keep` of the mean so far. Divided by the weights
/// it has seen, so that it does not start at zero.
Segments smoothed(const Segments& segments, double keep);

/// M4: of each run of points in one column of pixels, the first, the lowest, the highest and the
/// last are all that can be seen. Takes pixels.
std::vector<Point> thinned(const std::vector<Point>& points);

}  // namespace accel::detail
