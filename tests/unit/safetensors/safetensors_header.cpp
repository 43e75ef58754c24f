// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: the bytes of the reference writer, each refusal, and mutated
// headers.

#include <accel/checkpoint/safetensors_header.hpp>

#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

using accel::parse_safetensors_header;
using accel::SafetensorsEntry;
using accel::SafetensorsHeader;
using Catch::Matchers::ContainsSubstring;

namespace {

// A file with this JSON as header and `data` zero bytes behind it.
std::string file_of(std::string_view json, std::size_t data) {
  std::string bytes(8, '\0');
  for (std::size_t index = 0; index < 8; ++index) {
    bytes[index] = static_cast<char>(json.size() >> (8 * index) & 0xff);
  }
  return bytes.append(json).append(data, '\0');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(file, file.size(), "m.safetensors");
}

std::string refusal(const std::string& file) {
  try {
    parse(file);
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::checkpoint);
    return error.what();
  }
  return "accepted";
}

std::string format(std::vector<SafetensorsEntry> entries,
                   accel::SafetensorsMetadata metadata = {}) {
  return format_safetensors_header(
      lay_out_safetensors(std::move(entries), std::move(metadata), "m.safetensors"),
      "m.safetensors");
}

}  // namespace

TEST_CASE("B22 (i) the header equals the reference writer's") {
  const auto header =
      format({{"a", "F32", {3, 2}}, {"s", "I64", {}}, {"z", "F32", {0, 3}}}, {{"format", "pt"}});
  CHECK(
      header ==
      std::string("\xc8\0\0\0\0\0\0\0", 8) +
          R"({"__metadata__":{"format":"pt"},"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
          R"("a":{"dtype":"F32","shape":[3,2],"data_offsets":[8,32]},)"
          R"("z":{"dtype":"F32","shape":[0,3],"data_offsets":[32,32]}}   )");
  CHECK(header.size() == 8 + 200);
  const auto plain = format({{"a", "F32", {3, 2}}, {"s", "I64", {}}, {"z", "F32", {0, 3}}});
  CHECK(plain.size() == 8 + 168);
}

TEST_CASE("every type stands where the reference writer puts it, wider before narrower") {
  std::vector<SafetensorsEntry> entries;
  for (const auto& type : accel::safetensors_types) {
    entries.insert(entries.begin(),
                   {std::string("t_").append(type.name), std::string(type.name), {1}});
  }
  const auto file = format(entries).append(58, '\0');
  const auto header = parse(file);
  REQUIRE(header.tensors.size() == std::size(accel::safetensors_types));
  // Recorded from safetensors 0.7.0: name and first byte of each tensor.
  const std::vector<std::pair<std::string, std::uint64_t>> expected{
      {"U64", 0},      {"I64", 8},      {"F64", 16}, {"C64", 24}, {"F32", 32}, {"U32", 36},
      {"I32", 40},     {"BF16", 44},    {"F16", 46}, {"U16", 48}, {"I16", 50}, {"F8_E8M0", 52},
      {"F8_E4M3", 53}, {"F8_E5M2", 54}, {"I8", 55},  {"U8", 56},  {"BOOL", 57}};
  for (std::size_t index = 0; index < expected.size(); ++index) {
    CHECK(header.tensors[index].type == expected[index].first);
    CHECK(header.tensors[index].begin == expected[index].second);
  }
}

TEST_CASE("names are escaped as the reference writer escapes them, and come back") {
  const std::string name = "q\"\\\n\x01\xc3\xa9\x7f/";
  const auto header = format({{name, "F32", {0, 3}}}, {{"format", "pt"}});
  CHECK(header == std::string("h\0\0\0\0\0\0\0", 8) +
                      "{\"__metadata__\":{\"format\":\"pt\"},\"q\\\"\\\\\\n\\u0001\xc3\xa9\x7f/\":"
                      "{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]}} ");
  CHECK(parse(header).tensors.at(0).name == name);
  CHECK_THROWS_AS(format({{"\xff", "F32", {}}}), accel::Error);
}

TEST_CASE("B22 (iii) metadata without a tensor reads back") {
  const auto file = format({}, {{"format", "pt"}, {"note", "x"}});
  const auto header = parse(file);
  CHECK(header.tensors.empty());
  CHECK(header.metadata == accel::SafetensorsMetadata{{"format", "pt"}, {"note", "x"}});
  CHECK(header.data_begin == file.size());
  CHECK(parse(format({})).tensors.empty());
}

TEST_CASE("a tensor in the data's own order and with any spacing is read") {
  const auto header = parse(file_of(
      R"({ "b" : {"shape":[2],"data_offsets":[4,6],"dtype":"U8"}, "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]} }  )",
      6));
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[1].shape == std::vector<std::int64_t>{2});
}

TEST_CASE("B22 the reader refuses, and names tensor and file") {
  struct Refusal {
    const char* json;
    std::size_t data;
    const char* says;
  };
  const auto& bad = GENERATE(values<Refusal>({
      // a hole before, between and behind
      {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3,
       "'w' begins at byte 1 of the data, leaving a hole from byte 0"},
      {R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       5, "'w' begins at byte 3 of the data, leaving a hole from byte 2"},
      {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 5,
       "3 bytes of data belong to no tensor (after 'w')"},
      {"{}", 4, "4 bytes of data belong to no tensor"},
      // overlap
      {R"({"v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       4, "'w' begins at byte 2 of the data, and overlaps what reaches to byte 3"},
      {R"({"v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
       3, "'w' begins at byte 0 of the data, and overlaps"},
      {R"({"v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
       3, "overlaps"},
      // past the end, and backwards
      {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3,
       "'w' ends at byte 4 of the data, but the file has 3"},
      {R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}})", 4,
       "'w' ends at 0, before it begins at 4"},
      // shape against span
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "'w' of type F32 and shape [2] takes 8 bytes, but its offsets [0, 4] span 4"},
      {R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,0]}})", 0,
       "'w' of type F32 and shape [] takes 4 bytes"},
      // names twice
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "has 'w' twice"},
      {R"({"w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1,
       "has 'dtype' twice"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "has 'k' twice"},
      {R"({"\u0077":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "has 'w' twice"},
      // overflow
      {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "'w' has the impossible shape [4294967296, 4294967296]"},
      {R"({"w":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0]}})", 0,
       "'w' has the impossible shape"},
      {R"({"w":{"dtype":"F64","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})", 0,
       "'w' has the impossible shape"},
      {R"({"w":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0,
       "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,99999999999999999999999]}})", 1,
       "'w' is not described by"},
      // types of the values
      {R"({"w":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4,
       "'w' has the unknown type 'F31'"},
      {R"({"w":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4,
       "'w' has the unknown type 'f32'"},
      {R"({"w":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1, "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":[1]}})", 1, "'w' is not described by"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
       "'w' is not described by"},
      {R"({"w":[1]})", 1, "'w' is not described by"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
      {R"({"__metadata__":{"k":1}})", 0, "'k' is not a text"},
      // JSON
      {R"([])", 0, "does not begin with '{'"},
      {R"( {})", 0, "does not begin with '{'"},
      {"", 0, "does not begin with '{'"},
      {R"({"w":)", 0, "not JSON"},
      {R"({} {})", 0, "not JSON"},
      {"{\"\xff\":{}}", 0, "not JSON"},
      {R"({"w":{"dtype":{"a":{"b":1}}}})", 0, "nested deeper"},
  }));
  INFO(bad.json);
  const auto text = refusal(file_of(bad.json, bad.data));
  CHECK_THAT(text, ContainsSubstring("m.safetensors"));
  CHECK_THAT(text, ContainsSubstring(bad.says));
}

TEST_CASE("B22 a truncated file and a header beyond the file are refused") {
  const auto file = format({{"w", "F32", {2}}}).append(8, '\0');
  REQUIRE(parse(file).tensors.size() == 1);
  for (std::size_t length = 0; length < file.size(); ++length) {
    const auto text = refusal(file.substr(0, length));
    INFO(length);
    CHECK_THAT(text, ContainsSubstring("truncated"));
  }
  std::string longer = file;
  longer[7] = '\x7f';
  CHECK_THAT(refusal(longer),
             ContainsSubstring(fmt::format("but the file has only {}", file.size())));
  CHECK_THAT(refusal("pickled!" + file), ContainsSubstring("not a safetensors file"));
}

TEST_CASE("a header that is deeper than the stack is refused") {
  CHECK_THAT(refusal(file_of(R"({"w":)" + std::string(2'000'000, '['), 0)),
             ContainsSubstring("nested deeper"));
}

TEST_CASE("what cannot be written is refused") {
  const auto refused = [](std::vector<SafetensorsEntry> entries) -> std::string {
    try {
      format(std::move(entries));
    } catch (const accel::Error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK_THAT(refused({{"w", "F32", {1}}, {"v", "U8", {1}}, {"w", "F32", {2}}}),
             ContainsSubstring("'w' is given to two tensors"));
  CHECK_THAT(refused({{"w", "F32", {1}}, {"w", "U8", {1}}}),
             ContainsSubstring("'w' is given to two tensors"));
  CHECK_THAT(refused({{"__metadata__", "F32", {1}}}),
             ContainsSubstring("'__metadata__' is reserved"));
  CHECK_THAT(refused({{"w", "F33", {1}}}), ContainsSubstring("unknown type 'F33'"));
  CHECK_THAT(refused({{"w", "U8", {-1}}}), ContainsSubstring("impossible shape"));
  const std::int64_t half = INT64_MAX / 2 + 1;
  CHECK_THAT(
      refused({{"a", "U8", {half}}, {"b", "U8", {half}}, {"c", "U8", {half}}, {"d", "U8", {half}}}),
      ContainsSubstring("too large"));
}

TEST_CASE("five thousand mutated headers are read whole or refused") {
  const auto good =
      format({{"layer.weight", "F32", {3, 2}}, {"layer.bias", "BF16", {3}}, {"n", "I64", {}}},
             {{"format", "pt"}})
          .append(38, '\0');
  REQUIRE(parse(good).tensors.size() == 3);
  std::mt19937 random(22);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  const std::string_view alphabet = R"({}[]",:0123456789-.eE\nul "dtypeshaF)";
  int refused = 0;
  for (int round = 0; round < 5'000; ++round) {
    auto file = good;
    for (auto count = 1 + below(4); count > 0; --count) {
      const auto place = below(file.size());
      switch (below(4)) {
        case 0: file[place] = static_cast<char>(random()); break;
        case 1: file[place] = alphabet[below(alphabet.size())]; break;
        case 2: file.erase(place, 1 + below(8)); break;
        default: file.insert(place, 1, alphabet[below(alphabet.size())]); break;
      }
      if (file.empty()) {
        break;
      }
    }
    try {
      const auto header = parse(file);
      // Whatever was accepted covers the data exactly once.
      std::uint64_t covered = 0;
      for (const auto& entry : header.tensors) {
        REQUIRE(entry.begin == covered);
        covered = entry.end;
      }
      REQUIRE(header.data_begin + covered == file.size());
    } catch (const accel::Error& error) {
      REQUIRE(error.category() == accel::ErrorCategory::checkpoint);
      ++refused;
    }
  }
  CHECK(refused > 3'000);
}
