// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a batch looks like, for each kind of sample, and what is said where samples do not fit
// together.
#include <accel/data/collate.hpp>
#include <accel/detail/error.hpp>

#include <boost/hana/define_struct.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using accel::default_collate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

template <class Sample>
auto collated(std::vector<Sample> samples) {
  return default_collate(std::move(samples));
}

bool same(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == right.scalar_type() && at::equal(left, right);
}

struct Window {
  BOOST_HANA_DEFINE_STRUCT(Window, (at::Tensor, prices), (at::Tensor, mask));
};
struct Pair {
  BOOST_HANA_DEFINE_STRUCT(Pair, (Window, past), (at::Tensor, next));
};

}  // namespace

TEST_CASE("Tensors are stacked") {
  const auto batch = collated<at::Tensor>({torch::ones({2, 3}), torch::zeros({2, 3})});
  CHECK(batch.sizes() == at::IntArrayRef({2, 2, 3}));
  CHECK(same(batch[0], torch::ones({2, 3})));
  CHECK(same(collated<at::Tensor>({torch::tensor(3), torch::tensor(4)}), torch::tensor({3, 4})));
}

TEST_CASE("Numbers become tensors, integers of int64") {
  CHECK(same(collated<int>({3, -1}), torch::tensor({3, -1}, torch::kLong)));
  CHECK(same(collated<std::uint8_t>({255, 0}), torch::tensor({255, 0}, torch::kLong)));
  CHECK(same(collated<std::int64_t>({(std::int64_t{1} << 53) + 1}),
             torch::tensor({(std::int64_t{1} << 53) + 1})));
  CHECK(same(collated<float>({1.5F}), torch::tensor({1.5F}, torch::kFloat)));
  CHECK(same(collated<double>({0.1}), torch::tensor({0.1}, torch::kDouble)));
  CHECK(same(collated<bool>({true, false}), torch::tensor({true, false})));
}

TEST_CASE("Rows of numbers become a matrix") {
  CHECK(same(collated<std::vector<float>>({{1, 2, 3}, {4, 5, 6}}),
             torch::arange(1.F, 7.F).view({2, 3})));
  CHECK(same(collated<std::array<int, 2>>({{1, 2}, {3, 4}, {5, 6}}),
             torch::arange(1, 7).view({3, 2})));
  CHECK(same(collated<std::vector<bool>>({{true, false}}),
             torch::tensor({true, false}).view({1, 2})));
  CHECK_THROWS_MATCHES(collated<std::vector<float>>({{1, 2, 3}, {4, 5, 6}, {7}}), accel::Error,
                       MessageMatches(ContainsSubstring("3 for sample 0, 1 for sample 2")));
}

TEST_CASE("Strings are kept") {
  CHECK(collated<std::string>({"a", "bc"}) == std::vector<std::string>{"a", "bc"});
}

TEST_CASE("Pairs, tuples, arrays and maps are collated part by part") {
  const auto [images, labels] =
      collated<std::pair<at::Tensor, int>>({{torch::ones(2), 7}, {torch::zeros(2), 8}});
  CHECK(images.sizes() == at::IntArrayRef({2, 2}));
  CHECK(same(labels, torch::tensor({7, 8}, torch::kLong)));

  const auto nested = collated<std::tuple<std::tuple<int>, std::string, std::pair<float, bool>>>(
      {{std::tuple{1}, "x", {0.5F, true}}, {std::tuple{2}, "y", {1.5F, false}}});
  CHECK(same(std::get<0>(std::get<0>(nested)), torch::tensor({1, 2}, torch::kLong)));
  CHECK(std::get<1>(nested) == std::vector<std::string>{"x", "y"});
  CHECK(same(std::get<2>(nested).first, torch::tensor({0.5F, 1.5F})));
  CHECK(same(std::get<2>(nested).second, torch::tensor({true, false})));

  const auto views = collated<std::array<at::Tensor, 2>>(
      {{torch::ones(1), torch::zeros(3)}, {torch::ones(1), torch::zeros(3)}});
  static_assert(std::is_same_v<decltype(views), const std::array<at::Tensor, 2>>);
  CHECK(views[1].sizes() == at::IntArrayRef({2, 3}));

  const auto one = collated<std::array<std::array<at::Tensor, 1>, 1>>({{{{{torch::ones(2)}}}}});
  CHECK(one[0][0].sizes() == at::IntArrayRef({1, 2}));

  const auto list = collated<std::vector<at::Tensor>>(
      {{torch::ones(1), torch::ones(4)}, {torch::ones(1), torch::ones(4)}});
  REQUIRE(list.size() == 2);
  CHECK(list[1].sizes() == at::IntArrayRef({2, 4}));

  using Named = std::unordered_map<std::string, at::Tensor>;
  const auto named = collated<Named>({{{"x", torch::ones(2)}, {"y", torch::ones(1)}},
                                      {{"y", torch::ones(1)}, {"x", torch::ones(2)}}});
  CHECK(named.size() == 2);
  CHECK(named.at("x").sizes() == at::IntArrayRef({2, 2}));
  CHECK_THROWS_MATCHES(collated<Named>({{{"x", torch::ones(2)}}, {{"z", torch::ones(2)}}}),
                       accel::Error, MessageMatches(ContainsSubstring("different keys")));
  CHECK_THROWS_AS(collated<Named>({{{"x", torch::ones(2)}}, {}}), accel::Error);
}

TEST_CASE("LibTorch's examples are collated; one without a target is its data") {
  using torch::data::Example;
  const auto batch =
      collated<Example<>>({{torch::ones(2), torch::tensor(3)}, {torch::ones(2), torch::tensor(4)}});
  static_assert(std::is_same_v<decltype(batch), const Example<>>);
  CHECK(batch.data.sizes() == at::IntArrayRef({2, 2}));
  CHECK(same(batch.target, torch::tensor({3, 4})));

  const auto numbers = collated<Example<at::Tensor, int>>({{torch::ones(2), 3}});
  CHECK(same(numbers.target, torch::tensor({3}, torch::kLong)));

  const auto data = collated<torch::data::TensorExample>({torch::ones(2), torch::ones(2)});
  static_assert(std::is_same_v<decltype(data), const at::Tensor>);
  CHECK(data.sizes() == at::IntArrayRef({2, 2}));
}

TEST_CASE("Structs that Hana knows keep their type") {
  const Window window{torch::ones(5), torch::ones(5, torch::kBool)};
  const auto batch = collated<Pair>({{window, torch::zeros(1)}, {window, torch::zeros(1)}});
  static_assert(std::is_same_v<decltype(batch), const Pair>);
  CHECK(batch.past.prices.sizes() == at::IntArrayRef({2, 5}));
  CHECK(batch.past.mask.scalar_type() == torch::kBool);
  CHECK(batch.next.sizes() == at::IntArrayRef({2, 1}));
}

TEST_CASE("Shapes and types that differ are named") {
  CHECK_THROWS_MATCHES(
      collated<at::Tensor>({torch::ones({1, 28}), torch::ones({1, 28}), torch::ones({1, 27})}),
      accel::Error,
      MessageMatches(ContainsSubstring("[1, 28] for sample 0") &&
                     ContainsSubstring("[1, 27] for sample 2") && ContainsSubstring("collate")));
  CHECK_THROWS_MATCHES(collated<at::Tensor>({torch::ones(2), torch::ones(2, torch::kLong)}),
                       accel::Error,
                       MessageMatches(ContainsSubstring("Float for sample 0") &&
                                      ContainsSubstring("Long for sample 1")));
  CHECK_THROWS_MATCHES(collated<at::Tensor>({torch::ones(2), at::Tensor()}), accel::Error,
                       MessageMatches(ContainsSubstring("sample 1")));
}

TEST_CASE("A batch that the dataset made is passed on") {
  const auto batch = torch::ones({3, 2});
  CHECK(default_collate(batch).is_same(batch));
  CHECK(accel::no_collate(std::vector<int>{1, 2}) == std::vector<int>{1, 2});
}
