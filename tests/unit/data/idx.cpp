// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// IDX files: what is read of good ones, what is said of bad ones, and the real Fashion-MNIST where
// it is installed.
#include <accel/data/idx.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/detail/error.hpp>
#include <support/scratch_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <torch/torch.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using accel::find_idx_files;
using accel::IdxImages;
using accel::IdxSplit;
using accel::read_idx;
using accel_test::ScratchFolder;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

std::string header(std::uint8_t type, const std::vector<std::uint32_t>& sizes) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const auto size : sizes)
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift & 0xFFU);
  return bytes;
}

fs::path write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

fs::path write_gzip(const fs::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return path;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Three images of 2 x 3, pixel values 0 .. 17.
std::string three_images() {
  auto bytes = header(8, {3, 2, 3});
  for (int pixel = 0; pixel < 18; ++pixel) bytes += static_cast<char>(pixel);
  return bytes;
}
std::string three_labels() { return header(8, {3}) + std::string{'\x05', '\x00', '\x09'}; }

template <class Function>
void refused(Function&& function, const fs::path& file, const std::string& text) {
  CHECK_THROWS_MATCHES(function(), accel::Error,
                       MessageMatches(ContainsSubstring(file.string()) && ContainsSubstring(text)));
}

const fs::path fashion = "/usr/share/datasets/fashion-mnist";

}  // namespace

TEST_CASE("Images and labels are read, compressed or not") {
  const ScratchFolder folder;
  SECTION("plain") {
    write(folder / "train-images-idx3-ubyte", three_images());
    write(folder / "train-labels-idx1-ubyte", three_labels());
  }
  SECTION("compressed") {
    write_gzip(folder / "train-images-idx3-ubyte.gz", three_images());
    write_gzip(folder / "train-labels-idx1-ubyte.gz", three_labels());
  }
  SECTION("one of them, and the other naming") {
    write(folder / "train-images.idx3-ubyte", three_images());
    write_gzip(folder / "train-labels.idx1-ubyte.gz", three_labels());
  }
  const IdxImages images(folder.path(), IdxSplit::train);
  CHECK(images.size() == 3);
  CHECK(images.height() == 2);
  CHECK(images.width() == 3);
  CHECK(images.classes() == 10);
  const auto batch = images.get_batch({2, 0, 2});
  const auto bytes = torch::arange(18).view({3, 1, 2, 3});
  CHECK(at::equal(batch.data,
                  bytes.index_select(0, torch::tensor({2, 0, 2})).to(torch::kFloat).div(255)));
  CHECK(at::equal(batch.target, torch::tensor({9, 5, 9}, torch::kLong)));
  const auto one = images.get(1);
  CHECK(one.data.sizes() == at::IntArrayRef({1, 2, 3}));
  CHECK(one.target.item<std::int64_t>() == 0);
  CHECK(one.target.dim() == 0);
  CHECK(images.get_batch({}).data.sizes() == at::IntArrayRef({0, 1, 2, 3}));
  CHECK_THROWS_MATCHES(images.get(3), accel::Error, MessageMatches(ContainsSubstring("image 3")));
}

TEST_CASE("Images are normalised as torch does it, bit for bit") {
  const ScratchFolder folder;
  std::string pixels = header(8, {1, 16, 16});
  for (int pixel = 0; pixel < 256; ++pixel) pixels += static_cast<char>(pixel);
  const auto images = write(folder / "i", pixels);
  const auto labels = write(folder / "l", header(8, {1}) + '\x01');
  const IdxImages set({images, labels}, {.mean = 0.2860F, .standard_deviation = 0.3530F});
  const auto wanted = torch::arange(256)
                          .to(torch::kFloat)
                          .div_(255)
                          .sub_(0.2860F)
                          .div_(0.3530F)
                          .view({1, 1, 16, 16});
  CHECK(at::equal(set.get_batch({0}).data, wanted));
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()})
    CHECK_THROWS_AS(IdxImages({images, labels}, {.standard_deviation = bad}), accel::Error);
}

TEST_CASE("A set without images is a dataset without samples") {
  const ScratchFolder folder;
  const IdxImages set(
      {write(folder / "i", header(8, {0, 28, 28})), write(folder / "l", header(8, {0}))});
  CHECK(set.size() == 0);
  CHECK(set.classes() == 0);
  for (const auto& batch : accel::data_loader(set, {.batch_size = 2})) FAIL(batch.data);
}

TEST_CASE("Files of a split are found, and what was looked for is said") {
  const ScratchFolder folder;
  CHECK_THROWS_MATCHES(find_idx_files(folder.path(), IdxSplit::train), accel::Error,
                       MessageMatches(ContainsSubstring(folder.path().string()) &&
                                      ContainsSubstring("train-images-idx3-ubyte.gz") &&
                                      ContainsSubstring("train-images.idx3-ubyte")));
  write(folder / "train-images-idx3-ubyte", "");
  CHECK_THROWS_MATCHES(find_idx_files(folder.path(), IdxSplit::train), accel::Error,
                       MessageMatches(ContainsSubstring("train-labels-idx1-ubyte")));
  write(folder / "t10k-images-idx3-ubyte.gz", "");
  write(folder / "test-labels-idx1-ubyte", "");
  const auto test = find_idx_files(folder.path(), IdxSplit::test);
  CHECK(test.images == folder / "t10k-images-idx3-ubyte.gz");
  CHECK(test.labels == folder / "test-labels-idx1-ubyte");
  CHECK_THROWS_MATCHES(
      find_idx_files(folder / "none", IdxSplit::test), accel::Error,
      MessageMatches(ContainsSubstring("none") && ContainsSubstring("dataset-fashion-mnist")));
}

TEST_CASE("Every malformed file is an error that names it and its fault") {
  const ScratchFolder folder;
  const auto path = folder / "file";
  const auto bad = [&](const std::string& bytes, const std::string& text) {
    write(path, bytes);
    refused([&] { (void)read_idx(path); }, path, text);
  };
  refused([&] { (void)read_idx(path); }, path, "no such file");
  refused([&] { (void)read_idx(folder.path()); }, folder.path(), "not a regular file");
  bad("", "ends in its magic number");
  bad(std::string("\0\0\x08", 3), "ends in its magic number");
  bad("PK\x03\x04 and more", "0x50 0x4b");
  bad(header(0x0D, {1}) + "abcd", "0x0d");
  bad(header(8, {}), "0 dimensions");
  bad(header(8, {1, 1, 1, 1, 1}) + "a", "5 dimensions");
  bad(header(8, {3, 2, 3}).substr(0, 10), "ends in its sizes");
  bad(three_images().substr(0, 20), "[3, 2, 3]");
  bad(three_images() + "x", "more bytes");
  bad(header(8, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}) + "abc", "4294967295");
  bad(header(8, {0x7FFFFFFF}) + "abc", "2147483647");

  const auto gz = folder / "file.gz";
  write(gz, three_images());
  refused([&] { (void)read_idx(gz); }, gz, "not a gzip file");
  write_gzip(gz, three_images());
  const auto whole = contents(gz);
  for (std::size_t length = 1; length < whole.size(); ++length) {  // cut off anywhere
    write(gz, whole.substr(0, length));
    refused([&] { (void)read_idx(gz); }, gz, "");
  }
  write_gzip(gz, header(8, {0xFFFFFFFF}) + "abc");
  refused([&] { (void)read_idx(gz); }, gz, "4294967295");
  write_gzip(gz, three_images().substr(0, 30));
  refused([&] { (void)read_idx(gz); }, gz, "cut off");
}

TEST_CASE("Damaged bytes give an error or other pixels, and nothing else") {
  const ScratchFolder folder;
  const auto gz = folder / "file.gz";
  std::mt19937 random(1);
  std::string pixels = header(8, {20, 9, 9});
  for (int i = 0; i < 20 * 81; ++i) pixels += static_cast<char>(random() % 7);
  write_gzip(gz, pixels);
  const auto compressed = contents(gz);
  int refusals = 0;
  for (int round = 0; round < 600; ++round) {
    const bool raw = round % 2 == 0;
    auto bytes = raw ? pixels : compressed;
    for (int change = 0; change < 3; ++change)
      bytes[random() % (change == 0 && raw ? 16 : bytes.size())] = static_cast<char>(random());
    const auto path = write(folder / (raw ? "file" : "file.gz"), bytes);
    try {
      const auto array = read_idx(path);
      std::size_t product = 1;
      for (const auto size : array.sizes) product *= static_cast<std::size_t>(size);
      REQUIRE(array.bytes.size() == product);
    } catch (const accel::Error& error) {
      REQUIRE_THAT(error.what(), ContainsSubstring(path.string()));
      ++refusals;
    }
  }
  CHECK(refusals > 300);
}

TEST_CASE("Images and labels that do not fit together are refused") {
  const ScratchFolder folder;
  const auto images = write(folder / "i", three_images());
  const auto labels = write(folder / "l", three_labels());
  const auto two = write(folder / "two", header(8, {2}) + "ab");
  CHECK_THROWS_MATCHES(
      IdxImages({images, two}), accel::Error,
      MessageMatches(ContainsSubstring("3 images") && ContainsSubstring("2 labels")));
  refused([&] { IdxImages({labels, labels}); }, labels, "no images");
  refused([&] { IdxImages({images, images}); }, images, "no labels");
  const auto flat = write(folder / "flat", header(8, {3, 0, 28}));
  refused([&] { IdxImages({flat, labels}); }, flat, "[3, 0, 28]");
}

TEST_CASE("Fashion-MNIST, where it is installed, is what LibTorch reads of it") {
  if (!fs::exists(fashion)) SKIP("the package dataset-fashion-mnist is not installed");
  const IdxImages train(fashion, IdxSplit::train);
  const IdxImages test(fashion, IdxSplit::test);
  CHECK(train.size() == 60'000);
  CHECK(test.size() == 10'000);
  CHECK(train.classes() == 10);
  CHECK(train.height() == 28);
  CHECK(train.width() == 28);

  // LibTorch reads uncompressed files of this name and size only.
  const ScratchFolder folder;
  const auto files = find_idx_files(fashion, IdxSplit::test);
  const auto unpack = [&](const fs::path& from, const char* name,
                          const std::vector<std::uint32_t>& sizes) {
    const auto array = read_idx(from);
    write(folder / name, header(8, sizes) + std::string(array.bytes.begin(), array.bytes.end()));
  };
  unpack(files.images, "t10k-images-idx3-ubyte", {10'000, 28, 28});
  unpack(files.labels, "t10k-labels-idx1-ubyte", {10'000});
  auto theirs = torch::data::datasets::MNIST(folder.path().string(),
                                             torch::data::datasets::MNIST::Mode::kTest);
  std::size_t seen = 0;
  for (const auto& batch : accel::data_loader(test, {.batch_size = 1'000, .num_workers = 2})) {
    std::vector<std::size_t> indices(static_cast<std::size_t>(batch.target.size(0)));
    for (auto& index : indices) index = seen++;
    const auto stacked = torch::data::transforms::Stack<>().apply_batch(theirs.get_batch(indices));
    REQUIRE(at::equal(batch.data, stacked.data));
    REQUIRE(at::equal(batch.target, stacked.target));
  }
  CHECK(seen == 10'000);
  CHECK(test.get(0).target.item<std::int64_t>() == 9);  // an ankle boot
}
