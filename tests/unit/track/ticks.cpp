// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/ticks.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

using accel::detail::Axis;
using accel::detail::linear_axis;
using accel::detail::logarithmic_axis;

namespace {

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> result;
  for (const auto& tick : axis.ticks) result.push_back(tick.label);
  return result;
}

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("ticks are round numbers around the range") {
  CHECK(labels(linear_axis(0, 1, 5, true, false)) ==
        Labels{"0", "0.2", "0.4", "0.6", "0.8", "1.0"});
  CHECK(labels(linear_axis(0.23, 2.31, 5, true, false)) ==
        Labels{"0", "0.5", "1.0", "1.5", "2.0", "2.5"});
  CHECK(labels(linear_axis(-3, 7, 5, true, false)) == Labels{"-4", "-2", "0", "2", "4", "6", "8"});
  CHECK(labels(linear_axis(0.91, 0.93, 4, true, false)) ==
        Labels{"0.910", "0.915", "0.920", "0.925", "0.930"});
  CHECK(linear_axis(0.23, 2.31, 5, true, false).low == 0);
  CHECK(linear_axis(0.23, 2.31, 5, true, false).high == 2.5);
}

TEST_CASE("an axis that is not rounded keeps its range") {
  const Axis axis = linear_axis(0, 937, 6, false, true);
  CHECK(labels(axis) == Labels{"0", "200", "400", "600", "800"});
  CHECK(axis.high == 937);
}

TEST_CASE("steps are whole where the values are") {
  CHECK(labels(linear_axis(0, 2, 8, false, true)) == Labels{"0", "1", "2"});
  CHECK(labels(linear_axis(0, 2, 8, false, false)).size() > 3);
}

TEST_CASE("large and small numbers have short labels that differ") {
  CHECK(labels(linear_axis(0, 60000, 6, false, true)) ==
        Labels{"0", "10k", "20k", "30k", "40k", "50k", "60k"});
  CHECK(labels(linear_axis(0, 2.5e6, 5, true, false)) ==
        Labels{"0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"});
  CHECK(labels(linear_axis(0, 4e-6, 4, true, false)) ==
        Labels{"0", "1e-6", "2e-6", "3e-6", "4e-6"});
  CHECK(labels(linear_axis(0, 3e20, 3, true, false)) == Labels{"0", "1e20", "2e20", "3e20"});
  CHECK(labels(linear_axis(1e9, 1e9 + 4, 4, false, true)) ==
        Labels{"1.000000000G", "1.000000001G", "1.000000002G", "1.000000003G", "1.000000004G"});
}

TEST_CASE("a range of one value is opened around it") {
  const Axis axis = linear_axis(0.5, 0.5, 5, true, false);
  CHECK(axis.low < 0.5);
  CHECK(axis.high > 0.5);
  const Axis zero = linear_axis(0, 0, 4, true, false);
  CHECK(labels(zero) == Labels{"-1.0", "-0.5", "0", "0.5", "1.0"});
}

TEST_CASE("a logarithmic axis has powers of ten, or 1, 2 and 5 times them") {
  CHECK(labels(logarithmic_axis(0.002, 30, 6)) == Labels{"0.001", "0.01", "0.1", "1", "10", "100"});
  CHECK(labels(logarithmic_axis(0.3, 4, 6)) == Labels{"0.2", "0.5", "1", "2", "5"});
  CHECK(labels(logarithmic_axis(1, 1, 6)) == Labels{"1", "2"});
  CHECK(labels(logarithmic_axis(1e-8, 1e4, 4)) == Labels{"1e-8", "1e-5", "0.01", "10", "10k"});
}

TEST_CASE(
    "whatever the range, ticks are few, finite, rising, inside, and have names of their own") {
  std::mt19937_64 random(1);
  const double extremes[] = {0,
                             1,
                             -1,
                             1e-320,
                             1e-30,
                             1e30,
                             1e308,
                             -1e308,
                             1e15 + 1,
                             123456.789,
                             std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::lowest()};
  for (int round = 0; round < 20000; ++round) {
    const auto draw = [&]() -> double {
      if (random() % 4 == 0) return extremes[random() % std::size(extremes)];
      const double exponent = static_cast<double>(random() % 600) - 300;
      const double sign = random() % 2 ? 1 : -1;
      return sign * std::pow(10, exponent) * (1 + static_cast<double>(random() % 1000) / 1000);
    };
    double low = draw();
    // Also ranges that are narrow for their place.
    double high = random() % 2
                      ? draw()
                      : low + std::abs(low) * std::pow(10, -static_cast<double>(random() % 17));
    if (low > high) std::swap(low, high);
    const int wanted = 2 + static_cast<int>(random() % 8);
    const bool rounded = random() % 2;
    INFO(low << " .. " << high << ", " << wanted << " ticks, " << (rounded ? "rounded" : "kept"));
    for (const bool logarithmic : {false, true}) {
      if (logarithmic && !(low > 0)) continue;
      const Axis axis = logarithmic ? logarithmic_axis(low, high, wanted)
                                    : linear_axis(low, high, wanted, rounded, false);
      REQUIRE(std::isfinite(axis.low));
      REQUIRE(std::isfinite(axis.high));
      REQUIRE(axis.low < axis.high);
      REQUIRE(axis.ticks.size() >= 1);
      REQUIRE(axis.ticks.size() <= static_cast<std::size_t>(logarithmic ? std::max(12, wanted + 2)
                                                                        : wanted * 3 / 2 + 3));
      std::set<std::string> names;
      for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
        const double slack = (axis.high / 2 - axis.low / 2) * 1e-6;
        REQUIRE(axis.ticks[i].value / 2 >= axis.low / 2 - slack);
        REQUIRE(axis.ticks[i].value / 2 <= axis.high / 2 + slack);
        if (i > 0) REQUIRE(axis.ticks[i].value > axis.ticks[i - 1].value);
        REQUIRE(names.insert(axis.ticks[i].label).second);
        REQUIRE(axis.ticks[i].label.size() <= 24);
      }
    }
  }
}
