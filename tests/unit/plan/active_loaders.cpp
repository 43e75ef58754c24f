// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The stack of loaders that are being iterated.
#include <accel/data/active_loaders.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

using accel::ActiveLoaders;
using Iteration = accel::ActiveLoaders::Iteration;

TEST_CASE("Outside a loop there is no loader, no end, no remainder") {
  const ActiveLoaders loaders;
  CHECK_FALSE(loaders.in_dataloader());
  CHECK_FALSE(loaders.end_of_dataloader());
  CHECK(loaders.remainder() == -1);
}

TEST_CASE("An inner loop hides the outer one until it ends") {
  const auto loaders = std::make_shared<ActiveLoaders>();
  Iteration outer(loaders, 3);
  CHECK(loaders->remainder() == 3);
  {
    Iteration inner(loaders, 5);
    inner.reached_last_batch();
    CHECK(loaders->end_of_dataloader());
    CHECK(loaders->remainder() == 5);
  }
  CHECK(loaders->in_dataloader());
  CHECK_FALSE(loaders->end_of_dataloader());
  CHECK(loaders->remainder() == 3);
  outer.reached_last_batch();
  CHECK(loaders->end_of_dataloader());
}

TEST_CASE("Iterations may end in any order, and by an exception") {
  const auto loaders = std::make_shared<ActiveLoaders>();
  std::optional<Iteration> outer;
  outer.emplace(loaders, 1);
  {
    Iteration inner(loaders, 2);
    outer.reset();
    CHECK(loaders->remainder() == 2);
  }
  CHECK_FALSE(loaders->in_dataloader());

  try {
    const Iteration broken(loaders, 1);
    throw std::runtime_error("in the loop");
  } catch (const std::runtime_error&) {
  }
  CHECK_FALSE(loaders->in_dataloader());
}

TEST_CASE("A moved iteration is still one iteration") {
  const auto loaders = std::make_shared<ActiveLoaders>();
  {
    Iteration first(loaders, 4);
    Iteration second(std::move(first));
    second.reached_last_batch();
    CHECK(loaders->end_of_dataloader());
  }
  CHECK_FALSE(loaders->in_dataloader());
}

TEST_CASE("The stack outlives the accelerator that made it") {
  auto loaders = std::make_shared<ActiveLoaders>();
  Iteration iteration(loaders, 4);
  const std::weak_ptr<ActiveLoaders> weak = loaders;
  loaders.reset();
  CHECK_FALSE(weak.expired());
  Iteration nobody_asks(nullptr, 1);
  nobody_asks.reached_last_batch();
}
