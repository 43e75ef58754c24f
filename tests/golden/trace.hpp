// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A golden trace as its file holds it, and how numbers are held against it. make_golden.py writes
// the files; recipe.hpp has the model and data that they are about, replay.hpp runs them.
#pragma once

#include <ATen/core/Tensor.h>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace golden {

using Json = nlohmann::json;

inline Json read_trace(const std::string& name) {
  const std::string path = ACCEL_SOURCE_DIR "/tests/golden/" + name + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  return Json::parse(file);
}

/// Numbers of a trace; null, which stands for what is not finite, becomes NaN.
inline std::vector<double> numbers(const Json& list) {
  std::vector<double> values;
  for (const auto& entry : list)
    values.push_back(entry.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                     : entry.get<double>());
  return values;
}

/// How far apart two numbers are, relative to magnitudes above 1. Two that are not finite agree.
inline double distance(double got, double expected) {
  if (!std::isfinite(got) || !std::isfinite(expected))
    return std::isfinite(got) == std::isfinite(expected) ? 0.0
                                                         : std::numeric_limits<double>::infinity();
  return std::abs(got - expected) / std::max(1.0, std::abs(expected));
}

/// Checks a series of the run against the trace's; a failure names the first entry that is off, and
/// the worst.
inline void check_series(const std::string& what, const std::vector<double>& got,
                         const std::vector<double>& expected, double tolerance) {
  INFO(what);
  REQUIRE(got.size() == expected.size());
  std::size_t first = got.size(), worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (first == got.size() && !(distance(got[i], expected[i]) <= tolerance)) first = i;
    if (distance(got[i], expected[i]) > distance(got[worst], expected[worst])) worst = i;
  }
  if (!got.empty()) {
    INFO("entry " << worst << " is worst: " << got[worst] << " against " << expected[worst]
                  << ", apart by " << distance(got[worst], expected[worst]));
    const auto first_that_is_off = first < got.size() ? static_cast<std::int64_t>(first) : -1;
    CHECK(first_that_is_off == -1);
  }
}

/// Sum and sum of magnitudes of a parameter, added up in 64 bits.
inline std::vector<double> checksum(const at::Tensor& parameter) {
  const auto wide = parameter.detach().to(at::kDouble);
  return {wide.sum().item<double>(), wide.abs().sum().item<double>()};
}

/// Intel's CPUs draw the mask of torch::nn::Dropout through MKL, from a stream of its own.
inline bool intel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.find("GenuineIntel") != std::string::npos) return true;
  return false;
}

}  // namespace golden
