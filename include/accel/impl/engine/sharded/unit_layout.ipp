// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/unit_layout.hpp>

#include <algorithm>

namespace accel::detail {

namespace {

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

UnitLayout::UnitLayout(const std::vector<int64_t>& numels, int ranks)
    : numels_(numels), ranks_(ranks) {
  int64_t end = 0;
  for (const auto numel : numels) {
    offsets_.push_back(end);
    end = rounded_up(end + std::max<int64_t>(numel, 1), alignment);  // no two begin at one place
  }
  chunk_ = rounded_up(end, alignment * ranks) / ranks;
}

Piece UnitLayout::piece(std::size_t parameter, int rank) const {
  const auto offset = offsets_.at(parameter), numel = numels_.at(parameter);
  const auto begin = std::clamp<int64_t>(rank * chunk_ - offset, 0, numel);
  const auto end = std::clamp<int64_t>((rank + 1) * chunk_ - offset, 0, numel);
  return begin < end ? Piece{begin, end} : Piece{};
}

int64_t UnitLayout::place_in_chunk(std::size_t parameter, int rank) const {
  const auto part = piece(parameter, rank);
  return part.size() > 0 ? offsets_.at(parameter) + part.begin - rank * chunk_ : 0;
}

}  // namespace accel::detail
