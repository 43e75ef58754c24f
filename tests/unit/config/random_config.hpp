// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Configurations drawn by a generator: every key of the table gets a legal value now and then,
// whatever the rules between keys say. What tests of files and of rules are run over.
#pragma once

#include <accel/config/config.hpp>
#include <accel/config/keys.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace accel_test {

class RandomConfig {
 public:
  explicit RandomConfig(unsigned seed) : generator_(seed) {}

  accel::Config operator()() {
    accel::Config config;
    for (const auto& key : accel::config_keys()) {
      if (below(3) == 0) key.set(config, value(key));
    }
    if (below(3) == 0)
      config.foreign["dynamo_config"] = R"({"dynamo_backend":"INDUCTOR","n":[1,-2.5,null,true]})";
    if (below(4) == 0) config.foreign["tpu_name"] = R"("no")";
    return config;
  }

  /// A value below `limit`.
  std::uint64_t below(std::uint64_t limit) { return generator_() % limit; }

 private:
  accel::Value value(const accel::Key& key) {
    using accel::KeyKind;
    switch (key.kind) {
      case KeyKind::boolean: return below(2) == 0;
      case KeyKind::integer: return key.least + static_cast<std::int64_t>(below(range(key)));
      case KeyKind::number: return static_cast<double>(below(1000)) / 7.0;
      case KeyKind::choice: return std::string(key.choices[below(key.choices.size())]);
      case KeyKind::names: {
        std::vector<std::string> names;
        for (auto left = below(4); left > 0; --left)
          names.push_back("Block" + std::to_string(below(9)));
        return names;
      }
      case KeyKind::text: break;
    }
    return text();
  }

  // Wide enough for the largest numbers of every range.
  static std::uint64_t range(const accel::Key& key) {
    const auto width = static_cast<std::uint64_t>(key.most) - static_cast<std::uint64_t>(key.least);
    return std::max<std::uint64_t>(width, width + 1);
  }

  // Words that formats read as something else, and characters that they escape.
  std::string text() {
    static const std::vector<std::string> odd{"",
                                              "no",
                                              "NO",
                                              "yes",
                                              "null",
                                              "~",
                                              "4",
                                              "0x10",
                                              "1e5",
                                              "1.5",
                                              "true",
                                              "-",
                                              "- a",
                                              "? b",
                                              "a: b",
                                              "# c",
                                              "a #b",
                                              " lead",
                                              "trail ",
                                              "[x]",
                                              "{y}",
                                              "*a",
                                              "&a",
                                              "!t",
                                              "|",
                                              ">",
                                              "%d",
                                              "@e",
                                              "`f",
                                              "'q'",
                                              "\"r\"",
                                              "a\\b",
                                              "a\nb",
                                              "\tt",
                                              "\r",
                                              "\x01",
                                              "\x7f",
                                              "2001-01-01",
                                              "1:30",
                                              "é",
                                              "日本",
                                              "\xF0\x9F\x98\x80",
                                              "10.0.0.1",
                                              "::1",
                                              "/etc/hosts",
                                              "all",
                                              "0,1",
                                              "---",
                                              "...",
                                              "<<",
                                              "y",
                                              "\xE2\x80\xA8",
                                              "\xEF\xBB\xBF",
                                              "\xC2\x85"};
    return odd[below(odd.size())];
  }

  std::mt19937_64 generator_;
};

}  // namespace accel_test
