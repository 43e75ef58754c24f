// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Reductions of each type against arithmetic in a wider one, and in rank order.
#include <accel/comm/shm_kernels.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

using accel::detail::Combine;
using accel::detail::Element;
using accel::detail::reduce_function;

namespace {

template <class T>
std::vector<T> reduced(Element element, Combine combine,
                       const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs)
    pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> out(inputs[0].size());
  reduce_function(element, combine)(reinterpret_cast<std::byte*>(out.data()), pointers,
                                    out.size() * sizeof(T) / accel::detail::size_of(element),
                                    inputs.size());
  return out;
}

std::uint16_t as_bf16(float value) {  // of values that need no rounding
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

/// A binary16 as a double, by its definition.
double value_of_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

/// The nearest binary16, ties to even, by search.
std::uint16_t nearest_f16(double value) {
  if (std::isnan(value)) return 0x7e00;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::abs(value);
  if (magnitude >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
  std::uint16_t low = 0, high = 0x7bff;
  while (low < high) {  // the greatest that is not above
    const auto middle = static_cast<std::uint16_t>((low + high + 1) / 2);
    if (value_of_f16(middle) <= magnitude)
      low = middle;
    else
      high = static_cast<std::uint16_t>(middle - 1);
  }
  if (low == 0x7bff) return static_cast<std::uint16_t>(sign | low);
  const double below = magnitude - value_of_f16(low);
  const double above = value_of_f16(static_cast<std::uint16_t>(low + 1)) - magnitude;
  const bool up = above < below || (above == below && (low & 1));
  return static_cast<std::uint16_t>(sign | (up ? low + 1 : low));
}

template <class T>
void check_integers(Element element) {
  const T big = std::numeric_limits<T>::max(), little = std::numeric_limits<T>::min();
  const std::vector<std::vector<T>> inputs{{3, big, little, 6}, {5, 1, T(2), 3}, {7, 0, T(1), 5}};
  const auto wrap = [](auto a, auto b, auto c) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(U(a) + U(b) + U(c)));
  };
  CHECK(reduced(element, Combine::sum, inputs) ==
        std::vector<T>{15, wrap(big, 1, 0), wrap(little, 2, 1), 14});
  CHECK(reduced(element, Combine::product, inputs)[0] == T(105));
  CHECK(reduced(element, Combine::min, inputs) == std::vector<T>{3, 0, std::min(little, T(1)), 3});
  CHECK(reduced(element, Combine::max, inputs) == std::vector<T>{7, big, T(2), 6});
  CHECK(reduced(element, Combine::bit_and, inputs)[3] == T(6 & 3 & 5));
  CHECK(reduced(element, Combine::bit_or, inputs)[3] == T(6 | 3 | 5));
  CHECK(reduced(element, Combine::bit_xor, inputs)[3] == T(6 ^ 3 ^ 5));
  CHECK(reduce_function(element, Combine::average) == nullptr);
}

}  // namespace

TEST_CASE("integers are exact and wrap") {
  check_integers<std::uint8_t>(Element::u8);
  check_integers<std::int8_t>(Element::i8);
  check_integers<std::uint16_t>(Element::u16);
  check_integers<std::int16_t>(Element::i16);
  check_integers<std::uint32_t>(Element::u32);
  check_integers<std::int32_t>(Element::i32);
  check_integers<std::uint64_t>(Element::u64);
  check_integers<std::int64_t>(Element::i64);
  CHECK(reduced<std::int64_t>(Element::i64, Combine::sum, {{(1LL << 53) + 1}, {1}})[0] ==
        9007199254740994);  // B36
}

TEST_CASE("booleans stay 0 or 1") {
  const std::vector<std::vector<std::uint8_t>> inputs{{1, 1, 0, 0}, {1, 0, 1, 0}};
  using Row = std::vector<std::uint8_t>;
  for (const auto any : {Combine::sum, Combine::max, Combine::bit_or})
    CHECK(reduced(Element::boolean, any, inputs) == Row{1, 1, 1, 0});
  for (const auto all : {Combine::product, Combine::min, Combine::bit_and})
    CHECK(reduced(Element::boolean, all, inputs) == Row{1, 0, 0, 0});
  CHECK(reduced(Element::boolean, Combine::bit_xor, inputs) == Row{0, 1, 1, 0});
  CHECK(reduce_function(Element::boolean, Combine::average) == nullptr);
}

TEST_CASE("floats are added in rank order, whatever the number of ranks") {
  // 1e8 + 1 - 1e8: in this order the 1 is lost, in another it is not.
  CHECK(reduced<float>(Element::f32, Combine::sum, {{1e8f}, {1.0f}, {-1e8f}})[0] == 0.0f);
  CHECK(reduced<float>(Element::f32, Combine::sum, {{1e8f}, {-1e8f}, {1.0f}})[0] == 1.0f);
  CHECK(reduced<float>(Element::f32, Combine::average, {{1.0f}, {2.0f}, {6.0f}})[0] == 3.0f);
  CHECK(reduced<double>(Element::f64, Combine::average, {{1.0}, {2.0}})[0] == 1.5);
  CHECK(reduced<float>(Element::f32, Combine::product, {{3.0f}, {-2.0f}, {0.5f}})[0] == -3.0f);
  // Longer than a block, in place on the second of three.
  std::vector<float> first(5000, 1.0f), second(5000, 2.0f), third(5000, 4.0f);
  const std::array<const std::byte*, 3> inputs{reinterpret_cast<const std::byte*>(first.data()),
                                               reinterpret_cast<const std::byte*>(second.data()),
                                               reinterpret_cast<const std::byte*>(third.data())};
  reduce_function(Element::f32, Combine::sum)(reinterpret_cast<std::byte*>(second.data()), inputs,
                                              5000, 3);
  CHECK(second == std::vector<float>(5000, 7.0f));
  CHECK(reduce_function(Element::f32, Combine::bit_and) == nullptr);
}

TEST_CASE("the least and the greatest of floats is NaN where one is") {
  const float nan = std::nanf("");
  for (const auto combine : {Combine::min, Combine::max})
    for (const auto& inputs :
         {std::vector<std::vector<float>>{{nan}, {1.0f}}, {{1.0f}, {nan}}, {{1.0f}, {nan}, {2.0f}}})
      CHECK(std::isnan(reduced(Element::f32, combine, inputs)[0]));
  CHECK(reduced<float>(Element::f32, Combine::min, {{3.0f}, {-1.0f}})[0] == -1.0f);
}

TEST_CASE("16-bit floats are summed in fp32 and rounded once") {
  // 256 + 1 is no bf16, and 256 + 1 + 1 is one: each sum rounded would lose both.
  using Bits = std::vector<std::uint16_t>;
  CHECK(reduced<std::uint16_t>(Element::bf16, Combine::sum,
                               {Bits{as_bf16(256)}, Bits{as_bf16(1)}, Bits{as_bf16(1)}})[0] ==
        as_bf16(258));
  // 2048 + 1 is no f16.
  CHECK(reduced<std::uint16_t>(Element::f16, Combine::sum,
                               {Bits{nearest_f16(2048)}, Bits{nearest_f16(1)},
                                Bits{nearest_f16(1)}})[0] == nearest_f16(2050));
  // The sum would not fit.
  CHECK(reduced<std::uint16_t>(Element::f16, Combine::average,
                               {Bits{nearest_f16(60000)}, Bits{nearest_f16(40000)}})[0] ==
        nearest_f16(50000));
}

TEST_CASE("every f16 survives, and every sum with one is rounded to the nearest, ties to even") {
  std::vector<std::uint16_t> all(65536), zeros(65536, 0x8000);  // x + -0 is x
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto same = reduced<std::uint16_t>(Element::f16, Combine::sum, {all, zeros});
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_nan = (all[i] & 0x7fff) > 0x7c00;
    wrong += is_nan ? (same[i] & 0x7fff) <= 0x7c00 : same[i] != all[i];
  }
  CHECK(wrong == 0);
  for (const int bits : {0x0001, 0x03ff, 0x3c00, 0x3555, 0x7bff, 0x6c01, 0x0400}) {
    const auto other = static_cast<std::uint16_t>(bits);
    const auto sums = reduced<std::uint16_t>(Element::f16, Combine::sum,
                                             {all, std::vector<std::uint16_t>(65536, other)});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto right = nearest_f16(value_of_f16(all[i]) + value_of_f16(other));
      const bool is_nan = (right & 0x7fff) > 0x7c00;
      // The sum of two is exact in f32 but for far apart ones, where the tie cannot be reached.
      wrong += is_nan ? (sums[i] & 0x7fff) <= 0x7c00 : (sums[i] != right && (right & 0x7fff) != 0);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("complex numbers have sums, averages and products") {
  using Row = std::vector<float>;
  CHECK(reduced<float>(Element::c32, Combine::sum, {{1, 2, 3, 4}, {5, 6, 7, 8}}) ==
        Row{6, 8, 10, 12});
  CHECK(reduced<float>(Element::c32, Combine::average, {{1, 2}, {3, 6}}) == Row{2, 4});
  CHECK(reduced<float>(Element::c32, Combine::product, {{1, 2}, {3, 4}}) == Row{-5, 10});
  for (const auto element : {Element::c16, Element::c32, Element::c64})
    for (const auto combine : {Combine::min, Combine::max, Combine::bit_or})
      CHECK(reduce_function(element, combine) == nullptr);
}

TEST_CASE("bytes are only copied") {
  for (int combine = 0; combine < 8; ++combine)
    CHECK(reduce_function(Element::bytes, static_cast<Combine>(combine)) == nullptr);
}
