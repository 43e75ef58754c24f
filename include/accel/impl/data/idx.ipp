// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads IDX files through zlib, which passes uncompressed files through. A file says how large it
// is, and is not believed: memory is taken only for sizes that a file of its length can hold.
#include <accel/data/idx.hpp>
#include <accel/detail/error.hpp>

#include <ATen/ops/empty.h>

#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace accel {
namespace {

namespace fs = std::filesystem;
using detail::fail;

constexpr auto bad_data = ErrorCategory::data;
constexpr std::uint8_t unsigned_byte = 0x08;  // the only element type of these sets
constexpr std::uint64_t best_compression =
    1032;  // deflate cannot do better: a bound on what a file may hold

/// A file that is read from start to end; errors name it.
class GzipFile {
 public:
  explicit GzipFile(const fs::path& path) : path_(path) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (error || !fs::exists(status)) fail(bad_data, "{}: there is no such file", path.string());
    if (!fs::is_regular_file(status)) fail(bad_data, "{}: not a regular file", path.string());
    length_ = fs::file_size(path, error);
    errno = 0;
    file_.reset(gzopen(path.c_str(), "rb"));
    if (error || !file_)
      fail(bad_data, "{}: cannot be opened: {}", path.string(),
           errno != 0 ? std::strerror(errno) : "out of memory");
    gzbuffer(file_.get(), 1U << 18U);
    compressed_ = gzdirect(file_.get()) == 0;
    if (!compressed_ && path.extension() == ".gz" && length_ > 0)
      fail(bad_data, "{}: not a gzip file, though its name ends in .gz", path.string());
  }

  /// The most bytes that a file of this length can give.
  [[nodiscard]] std::uint64_t largest_content() const noexcept {
    return compressed_ ? length_ * best_compression : length_;
  }

  /// Reads up to `size` bytes; fewer only at the end of the file.
  std::size_t read(std::uint8_t* into, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const auto piece = static_cast<unsigned>(std::min<std::size_t>(size - done, 1U << 30U));
      const int got = gzread(file_.get(), into + done, piece);
      check(got);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  // A stream that stops in the middle is an error to zlib only after the bytes before it were
  // given.
  void check(int got) const {
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (got >= 0 && (code == Z_OK || code == Z_STREAM_END)) return;
    fail(bad_data, "{}: the compressed data is damaged or cut off ({})", path_.string(),
         code == Z_BUF_ERROR ? "unexpected end of file" : message);
  }

  struct Close {
    void operator()(gzFile_s* file) const noexcept { gzclose_r(file); }
  };

  fs::path path_;
  std::uint64_t length_ = 0;
  std::unique_ptr<gzFile_s, Close> file_;
  bool compressed_ = false;
};

/// The sizes of an IDX file: two zero bytes, the element type, the number of dimensions, and each
/// as a big-endian uint32.
std::vector<std::int64_t> read_sizes(GzipFile& file, const std::string& name) {
  std::array<std::uint8_t, 4> word{};
  const auto next = [&](const char* what) {
    const auto got = file.read(word.data(), word.size());
    if (got < word.size()) fail(bad_data, "{}: the file ends in {}", name, what);
  };
  next("its magic number");
  if (word[0] != 0 || word[1] != 0)
    fail(bad_data, "{}: not an IDX file: it begins with {:#04x} {:#04x}, not with two zero bytes",
         name, word[0], word[1]);
  if (word[2] != unsigned_byte)
    fail(bad_data, "{}: the type of its elements is {:#04x}; only unsigned bytes (0x08) are read",
         name, word[2]);
  const int dims = word[3];
  if (dims < 1 || dims > 4)
    fail(bad_data, "{}: it says that it has {} dimensions; 1 to 4 are read", name, dims);

  std::vector<std::int64_t> sizes;
  for (int dim = 0; dim < dims; ++dim) {
    next("its sizes");
    sizes.push_back(static_cast<std::int64_t>(word[0]) << 24 |
                    static_cast<std::int64_t>(word[1]) << 16 |
                    static_cast<std::int64_t>(word[2]) << 8 | static_cast<std::int64_t>(word[3]));
  }
  return sizes;
}

/// The product of the sizes, if a file of this length can hold that many bytes.
std::size_t content_size(const std::vector<std::int64_t>& sizes, std::uint64_t largest,
                         const std::string& name) {
  std::uint64_t product = 1;
  for (const std::int64_t size : sizes) {
    const auto factor = static_cast<std::uint64_t>(size);
    if (factor != 0 && product > std::numeric_limits<std::uint64_t>::max() / factor)
      product = std::numeric_limits<std::uint64_t>::max();
    else
      product *= factor;
    if (product > largest)
      fail(bad_data,
           "{}: its sizes are [{}], more than a file of its length can hold; it is cut off or "
           "damaged",
           name, fmt::join(sizes, ", "));
  }
  return static_cast<std::size_t>(product);
}

std::optional<fs::path> first_existing(const fs::path& directory,
                                       const std::vector<std::string>& names) {
  for (const auto& name : names) {
    std::error_code ignored;
    if (fs::exists(directory / name, ignored)) return directory / name;
  }
  return std::nullopt;
}

std::vector<std::string> names_of(IdxSplit split, const char* what, int dims) {
  const std::vector<std::string> prefixes = split == IdxSplit::train
                                                ? std::vector<std::string>{"train"}
                                                : std::vector<std::string>{"t10k", "test"};
  std::vector<std::string> names;
  for (const auto& prefix : prefixes)
    for (const char* separator : {"-", "."})
      for (const char* ending : {"", ".gz"})
        names.push_back(fmt::format("{}-{}{}idx{}-ubyte{}", prefix, what, separator, dims, ending));
  return names;
}

}  // namespace

IdxArray read_idx(const fs::path& path) {
  const auto name = path.string();
  GzipFile file(path);
  IdxArray array;
  array.sizes = read_sizes(file, name);
  const auto size = content_size(array.sizes, file.largest_content(), name);
  array.bytes.resize(size);
  const auto got = file.read(array.bytes.data(), size);
  if (got < size)
    fail(bad_data, "{}: its sizes [{}] need {} bytes, but it has {}; it is cut off", name,
         fmt::join(array.sizes, ", "), size, got);
  std::uint8_t beyond = 0;
  if (file.read(&beyond, 1) != 0)
    fail(bad_data, "{}: it has more bytes than its sizes [{}] say", name,
         fmt::join(array.sizes, ", "));
  return array;
}

IdxFiles find_idx_files(const fs::path& directory, IdxSplit split) {
  std::error_code error;
  if (!fs::is_directory(directory, error))
    fail(bad_data,
         "{}: not a directory; name the one that holds the IDX files (the Debian package "
         "dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist)",
         directory.string());
  const auto find = [&](const char* what, int dims) {
    const auto names = names_of(split, what, dims);
    auto found = first_existing(directory, names);
    if (!found) fail(bad_data, "{}: holds none of {}", directory.string(), fmt::join(names, ", "));
    return *std::move(found);
  };
  return {.images = find("images", 3), .labels = find("labels", 1)};
}

IdxImages::IdxImages(const IdxFiles& files, const IdxOptions& options) {
  if (!std::isfinite(options.mean) || !std::isfinite(options.standard_deviation) ||
      options.standard_deviation <= 0)
    fail(ErrorCategory::config,
         "images cannot be normalised with mean {} and standard deviation {}; use finite values, "
         "the second above 0",
         options.mean, options.standard_deviation);
  images_ = read_idx(files.images);
  if (images_.sizes.size() != 3 || images_.sizes[1] == 0 || images_.sizes[2] == 0)
    fail(bad_data, "{}: its sizes are [{}], which are no images (count, height, width)",
         files.images.string(), fmt::join(images_.sizes, ", "));
  auto labels = read_idx(files.labels);
  if (labels.sizes.size() != 1)
    fail(bad_data, "{}: its sizes are [{}], which are no labels (count)", files.labels.string(),
         fmt::join(labels.sizes, ", "));
  if (labels.sizes[0] != images_.sizes[0])
    fail(bad_data, "{} has {} images, but {} has {} labels", files.images.string(),
         images_.sizes[0], files.labels.string(), labels.sizes[0]);
  labels_ = std::move(labels.bytes);
  for (std::size_t byte = 0; byte < value_of_byte_.size(); ++byte)
    value_of_byte_[byte] =
        (static_cast<float>(byte) / 255.0F - options.mean) / options.standard_deviation;
}

IdxImages::IdxImages(const fs::path& directory, IdxSplit split, const IdxOptions& options)
    : IdxImages(find_idx_files(directory, split), options) {}

std::int64_t IdxImages::classes() const noexcept {
  return labels_.empty() ? 0 : *std::ranges::max_element(labels_) + 1;
}

IdxImages::Example IdxImages::get(std::size_t index) const {
  auto batch = get_batch(index);
  return {batch.data.squeeze(0), batch.target.squeeze(0)};
}

IdxImages::Example IdxImages::get_batch(c10::ArrayRef<std::size_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Example batch(at::empty({count, 1, height(), width()}, at::TensorOptions(at::kFloat)),
                at::empty({count}, at::TensorOptions(at::kLong)));
  auto* pixel = batch.data.mutable_data_ptr<float>();
  auto* label = batch.target.mutable_data_ptr<std::int64_t>();
  const auto pixels = static_cast<std::size_t>(height() * width());
  for (const std::size_t index : indices) {
    if (index >= size())
      fail(ErrorCategory::usage, "image {} was asked for, and there are {}", index, size());
    const std::uint8_t* byte = images_.bytes.data() + index * pixels;
    for (std::size_t i = 0; i < pixels; ++i) pixel[i] = value_of_byte_[byte[i]];
    pixel += pixels;
    *label++ = labels_[index];
  }
  return batch;
}

}  // namespace accel
