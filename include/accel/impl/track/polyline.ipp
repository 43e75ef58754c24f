// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/polyline.hpp>
#include <accel/track/chart.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace accel::detail {
namespace {

double x_of(const Series& series, std::size_t index) {
  return series.x.empty() ? static_cast<double>(index) : series.x[index];
}

}  // namespace

Segments segments_of(const Series& series, bool log_y) {
  Segments segments(1);
  for (std::size_t i = 0; i < series.y.size(); ++i) {
    const Point point{x_of(series, i), series.y[i]};
    const bool drawable =
        std::isfinite(point.x) && std::isfinite(point.y) && (!log_y || point.y > 0);
    if (drawable)
      segments.back().push_back(point);
    else if (!segments.back().empty())
      segments.emplace_back();
  }
  if (segments.back().empty()) segments.pop_back();
  return segments;
}

Segments smoothed(const Segments& segments, double keep) {
  Segments result = segments;
  double sum = 0, weight = 0;
  for (auto& segment : result)
    for (auto& point : segment) {
      sum = keep * sum + (1 - keep) * point.y;
      weight = keep * weight + (1 - keep);
      point.y = sum / weight;
    }
  return result;
}

std::vector<Point> thinned(const std::vector<Point>& points) {
  std::vector<Point> kept;
  for (auto first = points.begin(); first != points.end();) {
    const auto end = std::find_if(first, points.end(), [&](const Point& point) {
      return std::floor(point.x) != std::floor(first->x);
    });
    const auto [low, high] =
        std::minmax_element(first, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    std::vector<std::vector<Point>::const_iterator> seen = {first, low, high, std::prev(end)};
    std::ranges::sort(seen);
    const auto repeated = std::ranges::unique(seen);
    seen.erase(repeated.begin(), repeated.end());
    for (const auto each : seen) kept.push_back(*each);
    first = end;
  }
  return kept;
}

}  // namespace accel::detail
