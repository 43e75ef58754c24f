// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/record.hpp>
#include <accel/detail/error.hpp>

#include <algorithm>

namespace accel {
namespace {

// Deeper than anybody groups metrics, and far from the end of the stack.
constexpr int deepest = 64;

}  // namespace

namespace detail {

std::string valid_utf8(std::string text) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::ranges::all_of(text, ascii)) return text;
  // nlohmann/json repairs text only while it writes, so: write it, and read it again.
  const Json value = std::move(text);
  return Json::parse(value.dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

}  // namespace detail

Record::Record(flatten_tag, const Json& values) {
  if (values.is_null()) return;
  if (!values.is_object())
    detail::fail(ErrorCategory::usage,
                 "log takes names with values, as in {{{{\"loss\", 1.5}}}}, and was given {}: {}",
                 values.is_array() ? "a list" : "a single value",
                 values.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80));
  flatten("", values, 0);
}

void Record::flatten(const std::string& prefix, const Json& object, int depth) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = prefix + detail::valid_utf8(name);
    if (value.is_object()) {
      if (depth == deepest)
        skipped_.push_back({key, "it is nested too deeply"});
      else
        flatten(key + "/", value, depth + 1);
    } else if (value.is_string()) {
      values_[key] = detail::valid_utf8(value.get<std::string>());
    } else if (value.is_number() || value.is_boolean()) {
      values_[key] = value;
    } else {
      skipped_.push_back(
          {key, value.is_null() ? "it is null" : "it is a list or a tensor of several elements"});
    }
  }
}

}  // namespace accel
