// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How a module is cut into units, and where parameters and their pieces lie in one.
#include "support/small_models.hpp"

#include <accel/accel.hpp>
#include <accel/engine/sharded/unit_layout.hpp>

#include <catch2/catch_all.hpp>

#include <random>

using accel::cut_into_units;
using accel::unit_rule_of;
using accel::test::SmallBlockImpl;
using accel::test::SmallGpt;
using accel::test::SmallMlp;

namespace {

/// "unit: parameter parameter ..." of each unit.
std::vector<std::string> cuts(const torch::nn::Module& module, const accel::UnitRule& rule) {
  std::vector<std::string> lines;
  for (const auto& unit : cut_into_units(module, rule)) {
    auto line = unit.name + ":";
    for (const auto& [name, tensor] : unit.parameters) line += " " + name;
    lines.push_back(line);
  }
  return lines;
}

torch::nn::Linear without_bias() {
  return torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false));
}

struct InnerImpl : torch::nn::Module {
  torch::nn::Linear a = register_module("a", without_bias());
};
struct OuterImpl : torch::nn::Module {
  at::Tensor own = register_parameter("own", torch::zeros({3}));
  std::shared_ptr<InnerImpl> inner = register_module("inner", std::make_shared<InnerImpl>());
};
struct Nested : torch::nn::Module {
  std::shared_ptr<OuterImpl> outer = register_module("outer", std::make_shared<OuterImpl>());
  std::shared_ptr<InnerImpl> beside = register_module("beside", std::make_shared<InnerImpl>());
  at::Tensor left = register_parameter("left", torch::zeros({1}));
};
/// Two lists that hold the same module, and layers of one class that stand in no list.
struct Shared : torch::nn::Module {
  torch::nn::ModuleList first = register_module("first", torch::nn::ModuleList());
  torch::nn::ModuleList second = register_module("second", torch::nn::ModuleList());
  torch::nn::Linear alone1 = register_module("alone1", without_bias());
  torch::nn::Linear alone2 = register_module("alone2", without_bias());
  Shared() {
    const auto common = without_bias();
    for (auto* list : {&first, &second}) {
      (*list)->push_back(common);
      (*list)->push_back(without_bias());
    }
  }
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("wrap_auto: the repeated children of lists and sequences, and a root of what is left") {
  const auto gpt = cuts(SmallGpt(true, 2), unit_rule_of<accel::wrap_auto>(0));
  REQUIRE(gpt.size() == 3);
  CHECK(gpt[0] == ": embedding.weight position.weight norm.weight norm.bias");
  CHECK(gpt[1].starts_with("blocks.0: blocks.0.norm1.weight"));
  CHECK(gpt[2].starts_with("blocks.1: blocks.1.norm1.weight"));
  CHECK(cuts(SmallMlp(), unit_rule_of<accel::wrap_auto>(0)) ==
        Lines{": first.weight first.bias last.weight last.bias",
              "middle.0: middle.0.weight middle.0.bias", "middle.2: middle.2.weight middle.2.bias",
              "middle.4: middle.4.weight middle.4.bias"});
  CHECK(cuts(Shared(), unit_rule_of<accel::wrap_auto>(0)) ==
        Lines{": alone1.weight alone2.weight", "first.0: first.0.weight", "first.1: first.1.weight",
              "second.1: second.1.weight"});
  CHECK(cuts(*torch::nn::Linear(2, 2), unit_rule_of<accel::wrap_auto>(0)) ==
        Lines{": weight bias"});
}

TEST_CASE("wrap<...>: modules of the classes, the inner ones their own; none is an error") {
  const Nested nested;
  CHECK(cuts(nested, unit_rule_of<accel::wrap<InnerImpl>>(0)) ==
        Lines{": left outer.own", "outer.inner: outer.inner.a.weight", "beside: beside.a.weight"});
  CHECK(cuts(nested, unit_rule_of<accel::wrap<InnerImpl, OuterImpl>>(0)) ==
        Lines{": left", "outer: outer.own", "outer.inner: outer.inner.a.weight",
              "beside: beside.a.weight"});
  CHECK_THROWS_WITH(cuts(nested, unit_rule_of<accel::wrap<SmallBlockImpl>>(0)),
                    Catch::Matchers::ContainsSubstring("has no submodule of the classes"));
}

TEST_CASE("wrap_by_size: consecutive modules until there are enough parameters") {
  const SmallMlp mlp;  // 693, 1122, 1122, 1122, 238
  const auto at_least = [&](int64_t size) {
    return cuts(mlp, unit_rule_of<accel::wrap_by_size>(size)).size();
  };
  CHECK(at_least(1) == 5);
  CHECK(at_least(700) == 4);
  CHECK(at_least(2000) == 2);
  CHECK(at_least(100'000'000) == 1);
}

TEST_CASE("the pieces of ranks are the whole, each element once, whatever the sizes") {
  auto random = std::mt19937(7);
  for (int draw = 0; draw < 200; ++draw) {
    const int ranks = std::uniform_int_distribution(1, 9)(random);
    std::vector<int64_t> numels(static_cast<size_t>(std::uniform_int_distribution(0, 6)(random)));
    for (auto& numel : numels) numel = std::uniform_int_distribution(0, 200)(random);
    const accel::detail::UnitLayout layout(numels, ranks);
    REQUIRE(layout.size() == layout.chunk() * ranks);
    REQUIRE(layout.chunk() % accel::detail::UnitLayout::alignment == 0);
    std::vector<int> held(static_cast<size_t>(layout.size()));
    for (size_t i = 0; i < numels.size(); ++i) {
      REQUIRE(layout.offset(i) % accel::detail::UnitLayout::alignment == 0);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto piece = layout.piece(i, rank);
        if (piece.size() == 0) continue;
        REQUIRE(piece.begin == next);
        next = piece.end;
        const auto place = layout.place_in_chunk(i, rank);
        REQUIRE(rank * layout.chunk() + place == layout.offset(i) + piece.begin);
        REQUIRE(place + piece.size() <= layout.chunk());
        for (int64_t k = 0; k < piece.size(); ++k)
          ++held[static_cast<size_t>(rank * layout.chunk() + place + k)];
      }
      REQUIRE(next == numels[i]);
    }
    REQUIRE(std::ranges::all_of(held, [](int times) { return times <= 1; }));
  }
}
