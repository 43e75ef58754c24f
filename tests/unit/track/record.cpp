// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/record.hpp>
#include <accel/detail/error.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

using accel::Json;
using accel::Record;

namespace {

std::vector<std::string> keys(const Record& record) {
  std::vector<std::string> result;
  for (const auto& [key, value] : record.values().items()) result.push_back(key);
  return result;
}

// Takes its argument as accelerator.log does: braces must reach it.
Record given(const Record& record) { return record; }

// The least that counts as a tensor.
struct FakeTensor {
  std::vector<double> elements;
  bool floating = true;
  std::int64_t numel() const { return static_cast<std::int64_t>(elements.size()); }
  bool is_floating_point() const { return floating; }
  template <class T>
  T item() const {
    return static_cast<T>(elements.at(0));
  }
};
static_assert(accel::detail::TensorLike<FakeTensor>);
static_assert(!accel::detail::TensorLike<double>);
static_assert(!accel::detail::TensorLike<std::vector<double>>);

static_assert(!std::constructible_from<Record, FakeTensor*>);

}  // namespace

TEST_CASE("B42 a record flattens nested names, keeps their order and names what it leaves out") {
  const Record record = given({{"loss", 1.5},
                               {"eval", {{"acc", .5}, {"n", 3}}},
                               {"note", "x"},
                               {"bad", {1, 2}},
                               {"done", true}});
  CHECK(keys(record) == std::vector<std::string>{"loss", "eval/acc", "eval/n", "note", "done"});
  CHECK(record.values()["loss"] == 1.5);
  CHECK(record.values()["eval/acc"] == .5);
  CHECK(record.values()["eval/n"].is_number_integer());
  CHECK(record.values()["note"] == "x");
  CHECK(record.values()["done"].is_boolean());
  REQUIRE(record.skipped().size() == 1);
  CHECK(record.skipped()[0].key == "bad");
}

TEST_CASE("a record of one entry, of two texts and of none is what it looks like") {
  CHECK(keys(given({{"loss", 1.5}})) == std::vector<std::string>{"loss"});
  CHECK(given({{"a", "b"}}).values()["a"] == "b");
  CHECK(given({{"a", "b"}, {"c", "d"}}).values()["c"] == "d");
  CHECK(given({}).values().empty());
  CHECK(Record(Json()).values().empty());
  CHECK(given({{"eval", Json::object()}}).values().empty());
}

TEST_CASE("a record is made of maps and of json values too") {
  const std::map<std::string, double> metrics = {{"b", 2.0}, {"a", 1.0}};
  CHECK(keys(Record(metrics)) == std::vector<std::string>{"a", "b"});
  const nlohmann::json sorted = {{"z", 1}, {"eval", {{"acc", .5}}}};
  CHECK(keys(Record(sorted)) == std::vector<std::string>{"eval/acc", "z"});
  Json ordered;
  ordered["z"] = 1;
  ordered["a"] = 2;
  CHECK(keys(Record(ordered)) == std::vector<std::string>{"z", "a"});
}

TEST_CASE("a record reads tensors of one element and leaves out others") {
  const Record record = given({{"loss", FakeTensor{{.25}}},
                               {"seen", FakeTensor{{9007199254740992.0}, false}},
                               {"many", FakeTensor{{1, 2}}},
                               {"none", FakeTensor{{}}}});
  CHECK(record.values()["loss"] == .25);
  CHECK(record.values()["seen"].is_number_integer());
  CHECK(record.values()["seen"] == std::int64_t{1} << 53);
  CHECK(keys(record) == std::vector<std::string>{"loss", "seen"});
  CHECK(record.skipped().size() == 2);
}

TEST_CASE("a record keeps whole numbers beyond 2^53 and values that are not finite") {
  const Record record = given({{"big", std::numeric_limits<std::int64_t>::max()},
                               {"inf", std::numeric_limits<double>::infinity()}});
  CHECK(record.values()["big"].get<std::int64_t>() == std::numeric_limits<std::int64_t>::max());
  CHECK(record.values()["inf"].get<double>() == std::numeric_limits<double>::infinity());
}

TEST_CASE("a record says why it left out null, and what is nested without end") {
  const Record null = given({{"x", nullptr}});
  REQUIRE(null.skipped().size() == 1);
  CHECK(null.skipped()[0].reason == "it is null");

  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json{{"a", std::move(deep)}};
  const Record record(deep);
  CHECK(record.values().empty());
  CHECK(record.skipped().size() == 1);
}

TEST_CASE("a record repairs text that is no UTF-8, and leaves the rest alone") {
  const Record record = given({{"bad\xff", "\xc3("}, {"größe", "€"}});
  CHECK(keys(record) == std::vector<std::string>{"bad\xEF\xBF\xBD", "größe"});
  CHECK(record.values()["bad\xEF\xBF\xBD"] == "\xEF\xBF\xBD(");
  CHECK(record.values()["größe"] == "€");
}

TEST_CASE("values without names are an error that shows them") {
  CHECK_THROWS_AS(given({1, 2, 3}), accel::Error);
  try {
    given(Record(Json(1.5)));
    FAIL("no error");
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::usage);
    CHECK(std::string(error.what()).find("1.5") != std::string::npos);
    CHECK(std::string(error.what()).find("{{\"loss\", 1.5}}") != std::string::npos);
  }
}
