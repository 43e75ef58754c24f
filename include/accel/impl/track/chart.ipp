// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/chart.hpp>
#include <accel/detail/error.hpp>
#include <accel/track/append_file.hpp>
#include <accel/track/polyline.hpp>
#include <accel/track/record.hpp>
#include <accel/track/ticks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

namespace accel {
namespace {

using detail::Axis;
using detail::Point;
using detail::Segments;

// Of the usual sans-serif faces, on average; texts are only placed by it, never cut.
constexpr double character_width = 6.6;
constexpr std::size_t colour_count = 6;

// The colours of Okabe and Ito, which colour-blind readers tell apart; paler ones for dark pages.
constexpr std::string_view style = R"(<style>
.page{fill:#ffffff}
text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#57606a}
.title{font-size:15px;font-weight:600;fill:#1f2328}
.legend{fill:#1f2328}
.grid{stroke:#d8dee4;stroke-width:1;fill:none}
.axis{stroke:#8c959f;stroke-width:1;fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.pale{stroke-width:1.2;stroke-opacity:.35}
.dashed{stroke-dasharray:7 4}
.s0{stroke:#0072b2}.s1{stroke:#d55e00}.s2{stroke:#009e73}.s3{stroke:#b4578c}.s4{stroke:#b77900}.s5{stroke:#3a8fc4}
@media (prefers-color-scheme:dark){
.page{fill:#0d1117}
text{fill:#9198a1}
.title,.legend{fill:#e6edf3}
.grid{stroke:#262d36}
.axis{stroke:#59636e}
.s0{stroke:#58a6e0}.s1{stroke:#ff8a4c}.s2{stroke:#2fc79b}.s3{stroke:#e69ac4}.s4{stroke:#f2bc4b}.s5{stroke:#9ad4f5}
}
</style>
)";

// Text inside XML: repaired UTF-8 without the control characters that XML 1.0 cannot hold even when
// escaped.
std::string escaped(std::string text) {
  std::string out;
  for (const char c : detail::valid_utf8(std::move(text))) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
    }
  }
  return out;
}

// Without the digits that say nothing: 12.5, 12, never -0.
std::string pixels(double value) {
  const double rounded = std::round(value * 10) / 10;
  return fmt::format("{}", rounded == 0 ? 0.0 : rounded);
}

double text_width(std::string_view text) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
  return static_cast<double>(characters) * character_width;
}

void check(const std::vector<Series>& series, const ChartOptions& options) {
  if (options.width < 240 || options.height < 160)
    detail::fail(ErrorCategory::usage,
                 "a chart of {}x{} pixels has no room for its axes; take at least 240x160",
                 options.width, options.height);
  if (!(options.smoothing >= 0 && options.smoothing < 1))
    detail::fail(ErrorCategory::usage, "smoothing is {}, and must be at least 0 and below 1",
                 options.smoothing);
  for (const auto& each : series)
    if (!each.x.empty() && each.x.size() != each.y.size())
      detail::fail(ErrorCategory::usage, "the series \"{}\" has {} values of x and {} of y",
                   each.label, each.x.size(), each.y.size());
}

struct Frame {
  double left, right, top, bottom;
  Axis x, y;
  bool log_y;

  [[nodiscard]] Point pixel(Point point) const {
    // Halves, since the whole range may be more than a double holds.
    const auto along = [](double v, double low, double high) {
      return (v / 2 - low / 2) / (high / 2 - low / 2);
    };
    const double up = log_y ? along(std::log10(point.y), std::log10(y.low), std::log10(y.high))
                            : along(point.y, y.low, y.high);
    return {left + std::clamp(along(point.x, x.low, x.high), 0.0, 1.0) * (right - left),
            bottom - std::clamp(up, 0.0, 1.0) * (bottom - top)};
  }
};

std::string path_data(const Segments& segments, const Frame& frame) {
  std::string data;
  for (const auto& segment : segments) {
    std::vector<Point> points;
    points.reserve(segment.size());
    for (const auto& point : segment) points.push_back(frame.pixel(point));
    points = detail::thinned(points);
    for (std::size_t i = 0; i < points.size(); ++i)
      data += fmt::format("{}{} {}", i == 0 ? "M" : "L", pixels(points[i].x), pixels(points[i].y));
    // A line of no length, which the round ends make a dot.
    if (points.size() == 1) data += "h0";
  }
  return data;
}

std::string class_of(std::size_t series) {
  return fmt::format("s{}{}", series % colour_count,
                     series / colour_count % 2 == 1 ? " dashed" : "");
}

// One row or more of line samples with names, from `top` down. Gives the lowest pixel row it takes.
double draw_legend(std::string& svg, const std::vector<Series>& series, double left, double right,
                   double top) {
  double x = left;
  double y = top;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const double width = 30 + text_width(series[i].label) + 18;
    if (x > left && x + width > right) {
      x = left;
      y += 18;
    }
    svg += fmt::format("<path class=\"line {}\" d=\"M{} {}h22\"/><text class=\"legend\" x=\"{}\" "
                       "y=\"{}\">{}</text>\n",
                       class_of(i), pixels(x), pixels(y), pixels(x + 29), pixels(y + 4),
                       escaped(series[i].label));
    x += width;
  }
  return y + 8;
}

void draw_axes(std::string& svg, const Frame& frame, const ChartOptions& options,
               const std::string& y_label) {
  svg += "<g>\n";
  for (const auto& tick : frame.y.ticks) {
    const double y = frame.pixel({frame.x.low, tick.value}).y;
    svg += fmt::format("<path class=\"grid\" d=\"M{} {}H{}\"/><text x=\"{}\" y=\"{}\" "
                       "text-anchor=\"end\">{}</text>\n",
                       pixels(frame.left), pixels(y), pixels(frame.right), pixels(frame.left - 8),
                       pixels(y + 4), tick.label);
  }
  for (const auto& tick : frame.x.ticks) {
    const double x = frame.pixel({tick.value, frame.y.low}).x;
    svg += fmt::format("<path class=\"axis\" d=\"M{} {}v5\"/><text x=\"{}\" y=\"{}\" "
                       "text-anchor=\"middle\">{}</text>\n",
                       pixels(x), pixels(frame.bottom), pixels(x), pixels(frame.bottom + 19),
                       tick.label);
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{} {}H{}\"/>\n", pixels(frame.left),
                     pixels(frame.bottom), pixels(frame.right));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     pixels((frame.left + frame.right) / 2), options.height - 10,
                     escaped(options.x_label));
  if (!y_label.empty())
    svg += fmt::format(
        "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        pixels((frame.top + frame.bottom) / 2), escaped(y_label));
  svg += "</g>\n";
}

// The ranges of everything that is drawn, and whether all x are whole numbers.
struct Extent {
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low;
  double y_low = x_low, y_high = -x_low;
  bool whole_x = true;

  void include(const Segments& segments) {
    for (const auto& segment : segments)
      for (const auto& point : segment) {
        x_low = std::min(x_low, point.x);
        x_high = std::max(x_high, point.x);
        y_low = std::min(y_low, point.y);
        y_high = std::max(y_high, point.y);
        whole_x = whole_x && point.x == std::floor(point.x);
      }
  }
  [[nodiscard]] bool empty() const { return x_low > x_high; }
};

}  // namespace

std::string line_chart(const std::vector<Series>& series, const ChartOptions& options) {
  check(series, options);
  std::vector<Segments> drawn;
  Extent extent;
  for (const auto& each : series) {
    drawn.push_back(detail::segments_of(each, options.log_y));
    extent.include(drawn.back());
  }
  const bool empty = extent.empty();
  if (empty)
    extent = {
        .x_low = 0, .x_high = 1, .y_low = options.log_y ? 0.1 : 0, .y_high = 1, .whole_x = true};

  std::string svg = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
                                "height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n",
                                options.width, options.height);
  if (!options.title.empty()) svg += fmt::format("<title>{}</title>\n", escaped(options.title));
  svg += style;
  svg += "<rect class=\"page\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n";

  Frame frame{.left = 0,
              .right = options.width - 24.0,
              .top = 18,
              .bottom = options.height - 50.0,
              .x = {},
              .y = {},
              .log_y = options.log_y};
  if (!options.title.empty()) {
    svg +=
        fmt::format("<text class=\"title\" x=\"18\" y=\"28\">{}</text>\n", escaped(options.title));
    frame.top = 48;
  }
  // A single line needs no legend: its name stands at the axis.
  const bool legend = series.size() > 1;
  const std::string y_label =
      options.y_label.empty() && series.size() == 1 ? series[0].label : options.y_label;
  if (legend) frame.top = draw_legend(svg, series, 18, frame.right, frame.top + 2) + 12;
  // Of a legend that would fill the picture, the lines come first.
  frame.top = std::min(frame.top, frame.bottom - 60);

  const int y_ticks = std::max(2, static_cast<int>((frame.bottom - frame.top) / 60));
  frame.y = options.log_y ? detail::logarithmic_axis(extent.y_low, extent.y_high, y_ticks)
                          : detail::linear_axis(extent.y_low, extent.y_high, y_ticks, true, false);
  double widest = 0;
  for (const auto& tick : frame.y.ticks) widest = std::max(widest, text_width(tick.label));
  frame.left = 14 + widest + 8 + (y_label.empty() ? 0 : 20);
  const int x_ticks = std::max(2, static_cast<int>((frame.right - frame.left) / 95));
  frame.x = detail::linear_axis(extent.x_low, extent.x_high, x_ticks, false, extent.whole_x);

  draw_axes(svg, frame, options, y_label);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    if (drawn[i].empty()) continue;
    const std::string name = escaped(series[i].label);
    const bool smooth = options.smoothing > 0;
    const auto line = [&](const Segments& segments, std::string_view more) {
      svg += fmt::format("<path class=\"line {}{}\" d=\"{}\"><title>{}</title></path>\n",
                         class_of(i), more, path_data(segments, frame), name);
    };
    line(drawn[i], smooth ? " pale" : "");
    if (smooth) line(detail::smoothed(drawn[i], options.smoothing), "");
  }
  if (empty)
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">no values to draw</text>\n",
                    pixels((frame.left + frame.right) / 2), pixels((frame.top + frame.bottom) / 2));
  return svg + "</svg>\n";
}

void write_line_chart(const std::filesystem::path& path, const std::vector<Series>& series,
                      const ChartOptions& options) {
  detail::write_whole_file(path, line_chart(series, options));
}

}  // namespace accel
