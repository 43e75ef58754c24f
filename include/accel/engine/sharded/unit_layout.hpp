// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the parameters of a unit lie in its one flat tensor, and which part of that is whose: pure
// arithmetic. First of the files of the sharded engine; unit.hpp puts memory behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accel::detail {

/// A part [begin, end) of a parameter, in elements.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const noexcept { return end - begin; }
};

/// The flat tensor of a unit: its parameters one after the other, each at an aligned place, then as
/// many elements of padding as make it divisible into equal chunks, one a rank.
class UnitLayout {
 public:
  /// Elements that a parameter's place is a multiple of: 64 bytes of fp32.
  static constexpr int64_t alignment = 16;

  UnitLayout(const std::vector<int64_t>& numels, int ranks);

  /// Elements of the whole, padding included: `ranks` chunks.
  [[nodiscard]] int64_t size() const noexcept { return chunk_ * ranks_; }
  /// Elements of each rank.
  [[nodiscard]] int64_t chunk() const noexcept { return chunk_; }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  /// Where a parameter begins.
  [[nodiscard]] int64_t offset(std::size_t parameter) const { return offsets_.at(parameter); }
  /// The part of a parameter that a rank holds, perhaps empty; then it begins and ends at 0.
  [[nodiscard]] Piece piece(std::size_t parameter, int rank) const;
  /// Where that part begins in the rank's chunk.
  [[nodiscard]] int64_t place_in_chunk(std::size_t parameter, int rank) const;

 private:
  std::vector<int64_t> offsets_;
  std::vector<int64_t> numels_;
  int64_t chunk_ = 0;
  int ranks_;
};

}  // namespace accel::detail
