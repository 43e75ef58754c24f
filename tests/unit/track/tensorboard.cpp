// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The bytes are read here by code that shares nothing with the writer: a bitwise checksum, and
// protozero's reader with the field numbers of TensorFlow's .proto files written out.
#include <accel/track/tensorboard.hpp>
#include <accel/detail/error.hpp>
#include <accel/track/event_file.hpp>
#include <catch2/catch_test_macros.hpp>
#include <protozero/pbf_reader.hpp>
#include <support/scratch_folder.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

using accel::TensorBoard;
using accel_test::ScratchFolder;

namespace {

std::uint32_t crc32c_bit_by_bit(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78 : 0);
  }
  return crc ^ 0xFFFFFFFF;
}

std::uint32_t unmasked(std::uint32_t masked) {
  const std::uint32_t rotated = masked - 0xA282EAD8;
  return (rotated >> 17) | (rotated << 15);
}

template <class T>
T little_endian(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;)
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes[i]));
  return value;
}

std::vector<std::string> payloads(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> result;
  for (std::string_view rest = bytes; !rest.empty();) {
    REQUIRE(rest.size() >= 16);
    const auto length = little_endian<std::uint64_t>(rest);
    REQUIRE(unmasked(little_endian<std::uint32_t>(rest.substr(8))) ==
            crc32c_bit_by_bit(rest.substr(0, 8)));
    REQUIRE(rest.size() >= length + 16);
    const auto payload = rest.substr(12, length);
    REQUIRE(unmasked(little_endian<std::uint32_t>(rest.substr(12 + length))) ==
            crc32c_bit_by_bit(payload));
    result.emplace_back(payload);
    rest.remove_prefix(16 + length);
  }
  return result;
}

struct Value {
  std::string tag;
  std::optional<float> scalar;
  std::optional<std::string> text;
  std::string plugin;
};

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version;
  std::vector<Value> values;
};

std::string text_of_tensor(protozero::pbf_reader tensor) {
  std::string text;
  while (tensor.next()) {
    switch (tensor.tag()) {
      case 1: CHECK(tensor.get_enum() == 7); break;  // DT_STRING
      case 2: {
        auto shape = tensor.get_message();
        REQUIRE(shape.next(2));
        auto dim = shape.get_message();
        REQUIRE(dim.next(1));
        CHECK(dim.get_int64() == 1);
        break;
      }
      case 8: text = tensor.get_string(); break;
      default: FAIL("an unknown field of Tensor"); break;
    }
  }
  return text;
}

Value value_of(protozero::pbf_reader reader) {
  Value value;
  while (reader.next()) {
    switch (reader.tag()) {
      case 1: value.tag = reader.get_string(); break;
      case 2: value.scalar = reader.get_float(); break;
      case 8: value.text = text_of_tensor(reader.get_message()); break;
      case 9: {
        auto metadata = reader.get_message();
        REQUIRE(metadata.next(1));
        auto plugin = metadata.get_message();
        REQUIRE(plugin.next(1));
        value.plugin = plugin.get_string();
        break;
      }
      default: FAIL("an unknown field of Value"); break;
    }
  }
  return value;
}

Event event_of(const std::string& payload) {
  Event event;
  protozero::pbf_reader reader(payload);
  while (reader.next()) {
    switch (reader.tag()) {
      case 1: event.wall_time = reader.get_double(); break;
      case 2: event.step = reader.get_int64(); break;
      case 3: event.version = reader.get_string(); break;
      case 5: {
        auto summary = reader.get_message();
        while (summary.next(1)) event.values.push_back(value_of(summary.get_message()));
        break;
      }
      default: FAIL("an unknown field of Event"); break;
    }
  }
  return event;
}

std::vector<Event> events(const std::filesystem::path& path) {
  std::vector<Event> result;
  for (const auto& payload : payloads(path)) result.push_back(event_of(payload));
  return result;
}

}  // namespace

TEST_CASE("the checksum is CRC-32C, by the vectors of RFC 3720") {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  CHECK(accel::detail::crc32c("") == 0);
  CHECK(accel::detail::crc32c("123456789") == 0xE3069283);
  CHECK(accel::detail::crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(accel::detail::crc32c(std::string(32, '\xFF')) == 0x62A8AB43);
  CHECK(accel::detail::crc32c(rising) == 0x46DD794E);
  CHECK(accel::detail::crc32c(falling) == 0x113FDB5C);
  CHECK(unmasked(accel::detail::masked_crc32c("123456789")) == 0xE3069283);
}

TEST_CASE("an event file has the version first, then one event a record, on disk at once") {
  const ScratchFolder folder;
  TensorBoard tracker(folder.path());
  tracker.log(
      {{"loss", 1.5}, {"eval", {{"acc", .5}, {"n", 3}}}, {"done", true}, {"note", "größer"}}, 0);
  tracker.log({{"loss", .25}}, 5000000000);
  tracker.log({{"loss", .125}}, 7);  // a lower step is kept

  const auto read = events(tracker.path());  // before finish: every record is flushed
  REQUIRE(read.size() == 4);
  CHECK(read[0].version == "brain.Event:2");
  CHECK(read[0].wall_time > 1.6e9);
  REQUIRE(read[1].values.size() == 5);
  CHECK(read[1].step == 0);
  CHECK(read[1].values[0].tag == "loss");
  CHECK(read[1].values[0].scalar == 1.5f);
  CHECK(read[1].values[1].tag == "eval/acc");
  CHECK(read[1].values[2].scalar == 3.0f);
  CHECK(read[1].values[3].scalar == 1.0f);
  CHECK(read[1].values[4].tag == "note");
  CHECK(read[1].values[4].text == "größer");
  CHECK(read[1].values[4].plugin == "text");
  CHECK(!read[1].values[4].scalar);
  CHECK(read[2].step == 5000000000);
  CHECK(read[3].step == 7);
  CHECK(read[3].values[0].scalar == .125f);
}

TEST_CASE("values that are not finite, or beyond a float, are scalars too") {
  const ScratchFolder folder;
  TensorBoard tracker(folder.path());
  tracker.log({{"a", std::nan("")}, {"b", -std::numeric_limits<double>::infinity()}, {"c", 1e300}},
              0);
  const auto values = events(tracker.path()).at(1).values;
  REQUIRE(values.size() == 3);
  CHECK(std::isnan(values[0].scalar.value()));
  CHECK(values[1].scalar == -std::numeric_limits<float>::infinity());
  CHECK(values[2].scalar == std::numeric_limits<float>::infinity());
}

TEST_CASE("the configuration is a text, as JSON that Markdown leaves alone") {
  const ScratchFolder folder;
  TensorBoard tracker(folder.path());
  tracker.store_init_configuration({{"lr", .1}, {"layers", {64, 64}}});
  const auto read = events(tracker.path());
  REQUIRE(read.size() == 2);
  REQUIRE(read[1].values.size() == 1);
  CHECK(read[1].values[0].tag == "config");
  CHECK(read[1].values[0].plugin == "text");
  CHECK(
      read[1].values[0].text ==
      "    {\n      \"lr\": 0.1,\n      \"layers\": [\n        64,\n        64\n      ]\n    }\n");
}

TEST_CASE("each event file has a name of its own, of the form that TensorBoard looks for") {
  const ScratchFolder folder;
  const TensorBoard first(folder.path()), second(folder.path());
  CHECK(first.path() != second.path());
  for (const auto* each : {&first, &second}) {
    const std::string name = each->path().filename();
    CHECK(name.starts_with("events.out.tfevents."));
    CHECK(name.find(fmt::format(".{}.", ::getpid())) != std::string::npos);
  }
}

TEST_CASE("an event after finish is an error, not lost") {
  const ScratchFolder folder;
  TensorBoard tracker(folder.path());
  tracker.finish();
  CHECK_THROWS_AS(tracker.log({{"loss", 1}}, 0), accel::Error);
}
