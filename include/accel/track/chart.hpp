// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A picture of how values went: a line chart as an SVG file, which browsers, editors and
// repositories show. Takes numbers and gives text; history.hpp reads the numbers back from a run.
// Where ticks stand is ticks.hpp's business.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accel {

/// One line of a chart. Without `x`, the points stand at 0, 1, 2, ... A y that is not finite (or
/// not positive on a logarithmic axis) leaves a gap.
struct Series {
  std::string label{};
  std::vector<double> x{};
  std::vector<double> y{};
};

struct ChartOptions {
  std::string title{};
  std::string x_label = "step";
  std::string y_label{};
  int width = 760;   ///< pixels, at least 240
  int height = 440;  ///< pixels, at least 160
  bool log_y = false;
  /// 0: lines as they are. Up to (below) 1: a running mean is drawn, with the values pale behind
  /// it; 0.9 averages about the last ten. The same rule as TensorBoard's slider.
  double smoothing = 0;
};

/// The SVG text: the same input gives the same bytes. Colours suit light and dark pages, and
/// readers who see few colours. A long series is thinned to what the width can show; its extremes
/// stay (the M4 rule: first, last, lowest and highest point of each column of pixels). Error(usage)
/// if x and y of a series have different lengths, or an option is out of range.
[[nodiscard]] std::string line_chart(const std::vector<Series>& series,
                                     const ChartOptions& options = {});

/// Writes it to a file, whole or not at all.
void write_line_chart(const std::filesystem::path& path, const std::vector<Series>& series,
                      const ChartOptions& options = {});

}  // namespace accel
