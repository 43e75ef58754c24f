// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/json_lines.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/wall_clock.hpp>

#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

namespace accel {
namespace {

namespace fs = std::filesystem;

std::string dump(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<std::string> content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The start of the last line if that has no newline, and whether it is whole nevertheless (an
// editor may have dropped it).
struct Tail {
  std::uintmax_t start;
  bool whole;
};

std::optional<Tail> unended_line(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return std::nullopt;
  const std::streamoff size = file.tellg();
  std::string line;
  for (std::streamoff at = size; at > 0;) {
    char block[4096];
    const std::streamoff length = std::min<std::streamoff>(at, sizeof block);
    at -= length;
    file.seekg(at);
    file.read(block, length);
    const std::string_view bytes(block, static_cast<std::size_t>(length));
    const std::size_t newline = bytes.rfind('\n');
    line.insert(0, bytes.substr(newline == std::string_view::npos ? 0 : newline + 1));
    if (newline != std::string_view::npos) break;
  }
  if (line.empty()) return std::nullopt;
  return Tail{static_cast<std::uintmax_t>(size) - line.size(), Json::accept(line)};
}

}  // namespace

namespace detail {

Json finite_json(Json value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const auto number = value.get<double>();
    return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  }
  if (value.is_structured())
    for (auto& element : value) element = finite_json(std::move(element));
  return value;
}

}  // namespace detail

JsonLines::JsonLines(const fs::path& folder) : folder_(folder), path_(folder / "metrics.jsonl") {
  const auto tail = unended_line(path_);
  if (tail && !tail->whole) {
    std::error_code error;
    fs::resize_file(path_, tail->start, error);
    if (error)
      detail::fail(ErrorCategory::data, "cannot cut the broken last line off {}: {}",
                   path_.string(), error.message());
  }
  file_ = detail::AppendFile::open(path_);
  if (tail && tail->whole) file_.append("\n");
}

void JsonLines::store_init_configuration(const Json& config) {
  const fs::path path = folder_ / "config.json";
  const std::string text = dump(detail::finite_json(config), 2);
  if (const auto earlier = content_of(path)) {
    if (*earlier == text) return;
    int number = 1;
    while (fs::exists(folder_ / fmt::format("config-{}.json", number))) ++number;
    detail::write_whole_file(folder_ / fmt::format("config-{}.json", number), *earlier);
  }
  detail::write_whole_file(path, text);
}

void JsonLines::log(const Record& record, std::int64_t step) {
  if (!file_.is_open())
    detail::fail(ErrorCategory::usage, "log after finish: {} of this run is closed",
                 path_.string());
  Json line = {{"step", step}, {"time", detail::seconds_since_1970()}};
  for (const auto& [key, value] : record.values().items()) {
    std::string unused = key;
    while (line.contains(unused)) unused += '_';
    line[unused] = detail::finite_json(value);
  }
  file_.append(dump(line));
}

}  // namespace accel
