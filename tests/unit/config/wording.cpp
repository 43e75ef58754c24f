// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Suggestions are near, quotes stay on one line.
#include <accel/config/wording.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <string>
#include <string_view>

namespace {

using accel::detail::did_you_mean;
using accel::detail::in_quotes;
using accel::detail::nearest;

constexpr std::array<std::string_view, 4> words{"num_processes", "num_machines", "mixed_precision",
                                                "use_cpu"};

TEST_CASE("the nearest word is what was meant, and a far one is not") {
  CHECK(nearest("num_proceses", words) == "num_processes");
  CHECK(nearest("num_machine", words) == "num_machines");
  CHECK(nearest("mixed_precisoin", words) == "mixed_precision");
  CHECK(nearest("USE_CPU", words) == "use_cpu");
  CHECK(nearest("ues_cpu", words) == "use_cpu");
  CHECK(nearest("learning_rate", words).empty());
  CHECK(nearest("x", words).empty());
  CHECK(nearest("", words).empty());
  CHECK(nearest(std::string(100'000, 'a'), words).empty());
  CHECK(did_you_mean("use_gpu", words) == "; did you mean 'use_cpu'?");
  CHECK(did_you_mean("quux", words).empty());
}

TEST_CASE("swapped neighbours are one mistake") {
  constexpr std::array<std::string_view, 2> candidates{"abxx", "ba"};
  CHECK(nearest("ab", candidates) == "ba");
}

TEST_CASE("a quoted text fits into a message") {
  CHECK(in_quotes("bf16") == "'bf16'");
  CHECK(in_quotes("a\nb\x7f") == "'a\\x0ab\\x7f'");
  CHECK(in_quotes(std::string(1000, 'x')) == "'" + std::string(60, 'x') + "...'");
}

}  // namespace
