// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Texts that were damaged at random always end in a Config or in accel::Error, never in anything
// else.
#include "random_config.hpp"

#include <accel/config/yaml.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

// What means something to one of the parsers, separated by spaces; `@` stands for a space.
constexpr std::string_view pieces =
    "{ } [ ] : :@ , \n \n@@ -@ ?@ &a@ *a <<:@*a !!str@ !< |\n >-\n \" ' # --- ... \t \r\n ~ null "
    "1e999 -0 .inf .nan 0x1F \xEF\xBB\xBF \\u0000 \\x \\ fp16:@ fsdp_config:@ %YAML@1.1\n "
    "&a@[*a,@*a] \x01";

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char letter : text) {
    if (letter == ' ') {
      words.emplace_back();
    } else {
      words.back() += letter == '@' ? ' ' : letter;
    }
  }
  return words;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : generator_(seed) {}

  std::string operator()(std::string text) {
    for (auto changes = 1 + below(6); changes > 0; --changes) change(text);
    return text;
  }

 private:
  void change(std::string& text) {
    const auto place = below(text.size() + 1);
    const auto length = below(12);
    switch (below(7)) {
      case 0: text.insert(place, 1, static_cast<char>(below(256))); break;
      case 1: text.erase(place, length); break;
      case 2: text.insert(place, text.substr(below(text.size() + 1), length * 4)); break;
      case 3: text.insert(place, pieces_[below(pieces_.size())]); break;
      case 4: text.resize(place); break;
      case 5: text.insert(place, 200, "[{ &*-"[below(6)]); break;
      default:
        if (place < text.size()) text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
    }
  }

  std::size_t below(std::size_t limit) { return generator_() % limit; }

  std::mt19937_64 generator_;
  std::vector<std::string> pieces_ = split(pieces);
};

TEST_CASE("2,000 damaged files are read or refused") {
  // ACCEL_FUZZ_TEXTS asks for a longer campaign.
  const char* const wanted = std::getenv("ACCEL_FUZZ_TEXTS");
  const int texts = wanted == nullptr ? 2'000 : std::atoi(wanted);
  accel_test::RandomConfig draw(99);
  Mutator mutate(100);
  int read = 0;
  int refused = 0;
  for (int trial = 0; trial < texts; ++trial) {
    const bool json = draw.below(2) == 0;
    const auto config = draw();
    const auto text = mutate(json ? accel::to_json(config) : accel::to_yaml(config));
    INFO(text);
    try {
      const auto result =
          accel::parse_config(text, json && draw.below(2) == 0 ? "a.json" : "a.yaml");
      ++read;
      // What was accepted is a configuration like any other.
      CHECK(accel::parse_config(accel::to_yaml(result), "b.yaml") == result);
    } catch (const accel::Error& error) {
      ++refused;
      CHECK(error.category() == accel::ErrorCategory::config);
      CHECK_FALSE(std::string(error.what()).empty());
    } catch (const std::exception& error) {
      FAIL("another exception: " << error.what());
    }
  }
  CHECK(read > texts / 20);
  CHECK(refused > texts / 4);
}

}  // namespace
