// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/ticks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace accel::detail {
namespace {

double power_of_ten(int exponent) { return std::pow(10.0, exponent); }

// The one of 1, 2, 5, 10 times a power of ten that is nearest to `step`, as a ratio.
double round_step(double step) {
  const double power = power_of_ten(static_cast<int>(std::floor(std::log10(step))));
  const double leading = step / power;
  return power * (leading < std::numbers::sqrt2 ? 1
                  : leading < std::sqrt(10.0)   ? 2
                  : leading < std::sqrt(50.0)   ? 5
                                                : 10);
}

// As many digits behind the point as `step` needs after division by `unit`.
int decimals_of(double step, double unit) {
  return std::max(0, static_cast<int>(std::ceil(-std::log10(step / unit) - 1e-9)));
}

// All labels of an axis have one form: plain, with a suffix for thousands, or in powers of ten.
std::string label_of(double value, double step, double largest) {
  if (value == 0) return "0";
  if (largest >= 1e15 || step < 0.99e-4) {
    const double leading = std::floor(std::log10(std::abs(value)) + 1e-9);
    const int digits =
        std::clamp(static_cast<int>(std::ceil(leading - std::log10(step) - 1e-9)), 0, 15);
    std::string text = fmt::format("{:.{}e}", value, digits);
    // 5e-06 is 5e-6 to a reader.
    const std::size_t exponent = text.find('e') + 2;
    text.erase(exponent,
               std::min(text.find_first_not_of('0', exponent), text.size() - 1) - exponent);
    if (const auto plus = text.find("e+"); plus != std::string::npos) text.erase(plus + 1, 1);
    return text;
  }
  struct Unit {
    double size;
    const char* suffix;
  };
  constexpr std::array units = {Unit{1e12, "T"}, Unit{1e9, "G"}, Unit{1e6, "M"}, Unit{1e3, "k"}};
  if (largest >= 1e4)
    for (const auto& unit : units)
      if (largest >= unit.size)
        return fmt::format("{:.{}f}{}", value / unit.size, decimals_of(step, unit.size),
                           unit.suffix);
  return fmt::format("{:.{}f}", value, decimals_of(step, 1));
}

// Differences of larger values, and steps between smaller ones, leave the range of a double.
double within_reach(double value) {
  return std::abs(value) < 1e-280 ? 0 : std::clamp(value, -1e300, 1e300);
}

// Opens a range in which nothing can be told apart: around its value, by half of that.
void open_empty_range(double& low, double& high) {
  const double middle = low / 2 + high / 2;
  const double size = std::max(std::abs(low), std::abs(high));
  if (high / 2 - low / 2 > size * 1e-10) return;
  const double half = size > 0 ? size / 2 : 1;
  low = middle - half;
  high = middle + half;
}

}  // namespace

Axis linear_axis(double low, double high, int wanted, bool rounded, bool whole) {
  low = within_reach(low);
  high = within_reach(high);
  open_empty_range(low, high);
  double step = round_step((high - low) / std::max(wanted, 1));
  if (whole) step = std::max(step, 1.0);

  // 3 / 10 is 0.3, and 3 * 0.1 is not.
  const auto multiple = [&](double index) {
    return step < 1 && step > 1e-15 ? index / std::round(1 / step) : index * step;
  };
  double first = std::ceil(low / step - 1e-9);
  double last = std::floor(high / step + 1e-9);
  if (rounded) {
    first = std::floor(low / step + 1e-9);
    last = std::ceil(high / step - 1e-9);
    low = multiple(first);
    high = multiple(last);
  }
  Axis axis{low, high, {}};
  const double size = std::max(std::abs(first), std::abs(last)) * step;
  for (double index = first; index <= last; ++index) {
    axis.ticks.push_back({multiple(index), label_of(multiple(index), step, size)});
  }
  return axis;
}

Axis logarithmic_axis(double low, double high, int wanted) {
  low = std::clamp(low, 1e-300, 1e300);
  high = std::clamp(high, low, 1e300);
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));

  std::vector<double> values;
  if (last - first >= 3) {
    const int stride = std::max(1, (last - first + wanted - 1) / std::max(wanted, 1));
    for (int exponent = first; exponent < last + stride; exponent += stride)
      values.push_back(power_of_ten(exponent));
  } else {
    for (int exponent = first; exponent <= last; ++exponent)
      for (const double factor : {1.0, 2.0, 5.0}) values.push_back(factor * power_of_ten(exponent));
    // Only the ticks around the range.
    while (values.size() > 2 && values[1] <= low * (1 + 1e-9)) values.erase(values.begin());
    while (values.size() > 2 && values[values.size() - 2] >= high * (1 - 1e-9)) values.pop_back();
  }

  Axis axis{values.front(), values.back(), {}};
  for (const double value : values) axis.ticks.push_back({value, label_of(value, value, value)});
  return axis;
}

}  // namespace accel::detail
