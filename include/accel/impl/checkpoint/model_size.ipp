// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/checkpoint/model_size.hpp>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace accel {
namespace {

/// The tensors of one child of a list, by their names below it.
using NamesBelow = std::set<std::string, std::less<>>;

bool is_number(std::string_view word) {
  return !word.empty() &&
         std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c); });
}

/// Calls `found(list, child, rest)` for each numbered part of a name: of "a.0.b.1.w" with "a", "a.0",
/// "b.1.w" and with "a.0.b", "a.0.b.1", "w".
template <class Found>
void for_each_child(std::string_view name, const Found& found) {
  for (std::size_t begin = 0; begin < name.size();) {
    const auto dot = name.find('.', begin);
    if (dot == std::string_view::npos) return;
    if (is_number(name.substr(begin, dot - begin)))
      found(name.substr(0, begin > 0 ? begin - 1 : 0), name.substr(0, dot), name.substr(dot + 1));
    begin = dot + 1;
  }
}

/// The children of lists that have a sibling with tensors of the same names.
std::set<std::string, std::less<>> repeated_children(const std::vector<SafetensorsEntry>& tensors) {
  std::map<std::string, std::map<std::string, NamesBelow>> lists;
  for (const auto& tensor : tensors)
    for_each_child(tensor.name, [&](auto list, auto child, auto rest) {
      lists[std::string(list)][std::string(child)].emplace(rest);
    });
  std::set<std::string, std::less<>> units;
  for (const auto& [list, children] : lists) {
    std::map<NamesBelow, int> kinds;
    for (const auto& [child, names] : children) ++kinds[names];
    for (const auto& [child, names] : children)
      if (kinds[names] > 1) units.insert(child);
  }
  return units;
}

bool is_floating_point(std::string_view type) { return type.starts_with('F') || type == "BF16"; }

}  // namespace

ModelSize model_size(const std::vector<SafetensorsEntry>& tensors) {
  const auto units = repeated_children(tensors);
  std::map<std::string, std::int64_t, std::less<>> sizes;  // by unit; "" is what is left over
  ModelSize size;
  for (const auto& tensor : tensors) {
    if (!is_floating_point(tensor.type)) continue;
    const auto elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1},
                                          std::multiplies<>());
    // As unit_rules.ipp cuts a module: what lies inside of a unit is part of it.
    std::string_view outermost;
    for_each_child(tensor.name, [&](auto, auto child, auto) {
      if (outermost.empty() && units.contains(child)) outermost = child;
    });
    auto& unit = sizes[std::string(outermost)];
    unit += elements;
    size.parameters += elements;
    size.largest_unit = std::max(size.largest_unit, unit);
  }
  return size;
}

ModelSize model_size(const std::filesystem::path& file) {
  return model_size(read_safetensors_header(InputFile(file)).tensors);
}

}  // namespace accel
