// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads back what json_lines.hpp wrote, for charts and reports at the end of a run, also of one
// that was resumed.
#pragma once

#include <accel/track/chart.hpp>

#include <filesystem>
#include <string_view>

namespace accel {

/// The values of one name, by step, from a metrics.jsonl file; label and name are the same. Values
/// of a run that was resumed replace those of the run before it from the step on where it took
/// over. A name that never occurs gives an empty series; "NaN" and "Infinity" come back as numbers;
/// text is left out. A line that is no JSON is an Error(data) with its number, except an unfinished
/// last one.
Series read_series(const std::filesystem::path& metrics, std::string_view name);

}  // namespace accel
