// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/early_stopping.hpp>
#include <catch2/catch_all.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <utility>
#include <vector>

using accel::BestIs;
using accel::EarlyStopping;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<bool> stops(EarlyStopping stopping, const std::vector<double>& metrics) {
  std::vector<bool> said;
  for (const auto metric : metrics) said.push_back(stopping.step(metric));
  return said;
}

}  // namespace

TEST_CASE("stops after more metrics without an improvement than it has patience for") {
  const EarlyStopping loss({.patience = 1});
  CHECK(stops(loss, {3, 2, 2, 1, 1, 1}) == std::vector{false, false, false, false, false, true});
  const EarlyStopping accuracy({.patience = 0, .mode = BestIs::highest});
  CHECK(stops(accuracy, {0.5, 0.6, 0.6}) == std::vector{false, false, true});
}

TEST_CASE("an improvement of less than min_delta is none, and neither is NaN") {
  EarlyStopping stopping({.patience = 1, .min_delta = 0.1});
  CHECK_FALSE(stopping.step(1.0));
  CHECK_FALSE(stopping.step(0.95));
  CHECK(stopping.best() == 1.0);
  CHECK(stopping.waited() == 1);
  CHECK(stopping.step(NAN));
  CHECK_FALSE(stopping.step(0.5));
  EarlyStopping never_a_number({.patience = 1});
  CHECK_FALSE(never_a_number.step(NAN));
  CHECK(never_a_number.step(NAN));
}

TEST_CASE("its state goes on where it was, also before the first metric") {
  EarlyStopping first({.patience = 1}), second({.patience = 1});
  second.load_state(nlohmann::json::parse(first.state().dump()));
  CHECK(std::isinf(second.best()));
  first.step(2);
  first.step(3);
  second.load_state(nlohmann::json::parse(first.state().dump()));
  CHECK(second.best() == 2);
  CHECK(second.step(3));
}

TEST_CASE("with a trigger, what one rank says holds for all") {
  struct Trigger {  // an accelerator of which another rank has set the trigger
    bool mine = false, others = true;
    void set_trigger() { mine = true; }
    bool check_trigger() { return std::exchange(mine, false) || others; }
  } trigger;
  EarlyStopping stopping({.patience = 5});
  CHECK(stopping.step(trigger, 1.0));
  trigger.others = false;
  CHECK_FALSE(stopping.step(trigger, 0.5));
}

TEST_CASE("options that cannot be are told") {
  CHECK_THROWS_WITH(EarlyStopping({.patience = -1}), ContainsSubstring("got -1 and 0"));
  CHECK_THROWS_WITH(EarlyStopping({.min_delta = NAN}), ContainsSubstring("nan"));
}
