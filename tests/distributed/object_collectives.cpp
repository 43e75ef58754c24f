// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives of values that are no tensors.
#include "support/thread_ranks.hpp"

#include <accel/comm/partial_state.hpp>

#include <catch2/catch_all.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Score {
  std::string name;
  double value = 0;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Score, name, value)
};

/// A value that only some ranks can write.
struct Picky {
  bool refuse = false;
};
void to_json(nlohmann::json& json, const Picky& picky) {
  if (picky.refuse) throw std::runtime_error("cannot be written");
  json = picky.refuse;
}
void from_json(const nlohmann::json& json, Picky& picky) { picky.refuse = json.get<bool>(); }

}  // namespace

TEST_CASE("all_gather_object gives every rank's value, in order, whatever its length") {
  const auto texts = results_of_ranks<std::vector<std::string>>(3, [](const PartialState& state) {
    return state.all_gather_object(std::string(static_cast<size_t>(state.process_index()), 'x'));
  });
  for (const auto& all : texts) CHECK(all == std::vector<std::string>{"", "x", "xx"});
  const auto maps = results_of_ranks<std::vector<std::map<std::string, std::vector<int64_t>>>>(
      2, [](const PartialState& state) {
        return state.all_gather_object(std::map<std::string, std::vector<int64_t>>{
            {"ids", std::vector<int64_t>(static_cast<size_t>(state.process_index()), 1)}});
      });
  for (const auto& all : maps) {
    CHECK(all[0].at("ids").empty());
    CHECK(all[1].at("ids") == std::vector<int64_t>{1});
  }
}

TEST_CASE("objects keep every bit of their numbers") {
  const double tiny = std::numeric_limits<double>::denorm_min();
  const auto all =
      results_of_ranks<std::vector<std::vector<double>>>(2, [&](const PartialState& state) {
        return state.all_gather_object(std::vector<double>{
            0.1, tiny, std::numeric_limits<double>::infinity(), std::nan(""), -0.0});
      });
  for (const auto& values : all[1]) {
    CHECK(values[0] == 0.1);
    CHECK(values[1] == tiny);
    CHECK(std::isinf(values[2]));
    CHECK(std::isnan(values[3]));
    CHECK(std::signbit(values[4]));
  }
  const auto large = results_of_ranks<int64_t>(2, [](const PartialState& state) {
    return state.broadcast_object(state.is_main_process() ? std::numeric_limits<int64_t>::max()
                                                          : 0);
  });
  CHECK(large[1] == std::numeric_limits<int64_t>::max());
}

TEST_CASE("broadcast_object gives one rank's value to all") {
  const auto all = results_of_ranks<Score>(3, [](const PartialState& state) {
    return state.broadcast_object(
        Score{"rank " + std::to_string(state.process_index()), 0.5 * state.process_index()}, 2);
  });
  for (const auto& score : all) {
    CHECK(score.name == "rank 2");
    CHECK(score.value == 1.0);
  }
}

TEST_CASE("an object that cannot be written, or is of another type, is an error on every rank") {
  const auto unwritten = errors_of_ranks(2, [](const PartialState& state) {
    (void)state.all_gather_object(Picky{state.process_index() == 1});
  });
  CHECK_THAT(unwritten[0], ContainsSubstring("another rank's object cannot be written"));
  CHECK(unwritten[1] == "cannot be written");
  const auto other = errors_of_ranks(2, [](const PartialState& state) {
    if (state.is_main_process())
      (void)state.broadcast_object(std::string("text"));
    else
      (void)state.broadcast_object(1);
  });
  CHECK(other[0].empty());
  CHECK_THAT(other[1], ContainsSubstring("the object of rank 0 is not of the type"));
  const auto root =
      errors_of_ranks(2, [](const PartialState& state) { (void)state.broadcast_object(1, 2); });
  for (const auto& error : root) CHECK_THAT(error, ContainsSubstring("the ranks are 0 to 1"));
}
