// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/wording.hpp.
#include <accel/config/wording.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <vector>

namespace accel::detail {
namespace {

constexpr std::size_t longest_word =
    64;  // longer ones are no slip of a finger, and the table is quadratic

char lower(char letter) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
}

// Optimal string alignment: three rows of the table are enough.
std::size_t mistakes(std::string_view from, std::string_view to) {
  const std::size_t width = to.size() + 1;
  std::vector<std::size_t> before(width);
  std::vector<std::size_t> above(width);
  std::vector<std::size_t> row(width);
  for (std::size_t j = 0; j < width; ++j) above[j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j < width; ++j) {
      const bool same = lower(from[i - 1]) == lower(to[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0U : 1U)});
      const bool swapped = i > 1 && j > 1 && lower(from[i - 1]) == lower(to[j - 2]) &&
                           lower(from[i - 2]) == lower(to[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[to.size()];
}

}  // namespace

std::string_view nearest(std::string_view typed, std::span<const std::string_view> candidates) {
  if (typed.empty() || typed.size() > longest_word) return {};
  std::string_view best;
  std::size_t fewest = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const auto candidate : candidates) {
    const std::size_t count = mistakes(typed, candidate);
    if (count < fewest) {
      fewest = count;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view typed, std::span<const std::string_view> candidates) {
  const auto found = nearest(typed, candidates);
  return found.empty() ? std::string() : "; did you mean '" + std::string(found) + "'?";
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string result = "'";
  for (const char letter : text.substr(0, longest)) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20 || code == 0x7f) {
      result += fmt::format("\\x{:02x}", code);
    } else {
      result += letter;
    }
  }
  return result + (text.size() > longest ? "...'" : "'");
}

}  // namespace accel::detail
