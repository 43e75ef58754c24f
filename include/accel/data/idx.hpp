// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// IDX files, the format of MNIST and the many sets made in its image (Fashion-MNIST, EMNIST,
// KMNIST), gzip-compressed or not, as a dataset. The images stay in memory as the bytes they are; a
// batch is made of them in one pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/example.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace accel {

/// An IDX file of bytes. The first of `sizes` counts the items.
struct IdxArray {
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> bytes;  ///< row-major
};

/// Reads an IDX file of unsigned bytes. Throws Error(data) that names the file and what is wrong
/// with it: not there, not gzip though its name says so, not IDX, of another type, more or fewer
/// bytes than its sizes say.
[[nodiscard]] IdxArray read_idx(const std::filesystem::path& file);

/// The two files of a set of labelled images.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

enum class IdxSplit { train, test };

/// Finds the files of a split in `directory`: train-images-idx3-ubyte and train-labels-idx1-ubyte,
/// or t10k-... (test-...), also with .idx3 for -idx3, and with or without .gz. Throws Error(data)
/// that lists what was looked for.
[[nodiscard]] IdxFiles find_idx_files(const std::filesystem::path& directory, IdxSplit split);

/// How a byte becomes a float: (byte / 255 - mean) / standard_deviation.
struct IdxOptions {
  float mean = 0.0F;
  float standard_deviation = 1.0F;
};

/// Labelled grey images: a dataset whose samples are float32 [1, height, width] with an int64
/// label. Reading is const.
class IdxImages {
 public:
  using Example = torch::data::Example<>;

  /// Throws Error(data) where a file is malformed or the two do not fit together; Error(config) for
  /// options that cannot be.
  explicit IdxImages(const IdxFiles& files, const IdxOptions& options = {});
  IdxImages(const std::filesystem::path& directory, IdxSplit split, const IdxOptions& options = {});

  [[nodiscard]] std::size_t size() const noexcept { return labels_.size(); }
  [[nodiscard]] std::int64_t height() const noexcept { return images_.sizes[1]; }
  [[nodiscard]] std::int64_t width() const noexcept { return images_.sizes[2]; }
  /// One more than the largest label.
  [[nodiscard]] std::int64_t classes() const noexcept;

  /// One image and its label (0-dim).
  [[nodiscard]] Example get(std::size_t index) const;
  /// [n, 1, height, width] and [n].
  [[nodiscard]] Example get_batch(c10::ArrayRef<std::size_t> indices) const;

 private:
  IdxArray images_;
  std::vector<std::uint8_t> labels_;
  std::array<float, 256> value_of_byte_{};
};

}  // namespace accel
