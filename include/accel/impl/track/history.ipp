// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/history.hpp>
#include <accel/detail/error.hpp>
#include <accel/track/append_file.hpp>
#include <accel/track/record.hpp>

#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace accel {
namespace {

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

}  // namespace

Series read_series(const std::filesystem::path& metrics, std::string_view name) {
  std::ifstream file(metrics);
  if (!file) detail::fail_on_file("read", metrics);
  Series series{.label = std::string(name), .x = {}, .y = {}};
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    const bool ended = !file.eof();
    const Json record = Json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number()) {
      if (!ended) break;
      detail::fail(ErrorCategory::data, "{} line {} is not a record of a run: {}", metrics.string(),
                   number, line.substr(0, 80));
    }
    const auto found = record.find(std::string(name));
    const auto value = found == record.end() ? std::nullopt : number_of(*found);
    if (!value) continue;
    const auto step = record["step"].get<double>();
    while (!series.x.empty() && series.x.back() >= step) {
      series.x.pop_back();
      series.y.pop_back();
    }
    series.x.push_back(step);
    series.y.push_back(*value);
  }
  return series;
}

}  // namespace accel
