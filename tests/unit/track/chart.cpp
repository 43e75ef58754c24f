// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Charts are read back as a viewer would: as XML, by the strict little reader below, then by the
// shapes in it.
#include <accel/track/chart.hpp>
#include <accel/detail/error.hpp>
#include <catch2/catch_test_macros.hpp>
#include <support/scratch_folder.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using accel::ChartOptions;
using accel::line_chart;
using accel::Series;

namespace {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;
};

// Every element in document order. Throws on anything that is not well formed (of the subset of XML
// that charts use).
std::vector<Element> elements_of(std::string_view xml) {
  std::vector<Element> all;
  std::vector<std::size_t> open;
  const auto demand = [](bool condition, std::string_view what) {
    if (!condition) throw std::runtime_error("not well-formed XML: " + std::string(what));
  };
  const auto decoded = [&](std::string_view raw) {
    std::string text;
    while (!raw.empty()) {
      demand(raw[0] != '<', "< in text");
      demand(static_cast<unsigned char>(raw[0]) >= 0x20 || raw[0] == '\n', "a control character");
      if (raw[0] != '&') {
        text += raw[0];
        raw.remove_prefix(1);
        continue;
      }
      static const std::map<std::string_view, char> entities = {
          {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}};
      const auto entity = entities.find(raw.substr(0, raw.find(';') + 1));
      demand(entity != entities.end(), "an unknown entity");
      text += entity->second;
      raw.remove_prefix(entity->first.size());
    }
    return text;
  };
  bool closed_root = false;
  while (!xml.empty()) {
    if (xml[0] != '<') {
      const auto end = std::min(xml.find('<'), xml.size());
      const auto text = decoded(xml.substr(0, end));
      if (open.empty())
        demand(text.find_first_not_of("\n ") == std::string::npos, "text outside the root");
      if (!open.empty()) all[open.back()].text += text;
      xml.remove_prefix(end);
      continue;
    }
    const auto end = xml.find('>');
    demand(end != std::string_view::npos, "a tag without end");
    std::string_view tag = xml.substr(1, end - 1);
    xml.remove_prefix(end + 1);
    if (tag.starts_with('/')) {
      demand(!open.empty() && all[open.back()].name == tag.substr(1), "a wrong end tag");
      open.pop_back();
      closed_root = open.empty();
      continue;
    }
    demand(!closed_root, "a second root");
    const bool empty = tag.ends_with('/');
    if (empty) tag.remove_suffix(1);
    Element element;
    const auto space = std::min(tag.find(' '), tag.size());
    element.name = tag.substr(0, space);
    tag.remove_prefix(space);
    // Not by std::regex, which recurses once a character: a path is long.
    while (!tag.empty()) {
      const auto equals = std::min(tag.find('='), tag.size());
      demand(tag[0] == ' ' && equals > 1 && tag.substr(equals).starts_with("=\""), "an attribute");
      const auto key = tag.substr(1, equals - 1);
      demand(key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-") ==
                 std::string_view::npos,
             "the name of an attribute");
      const auto quote = tag.find('"', equals + 2);
      demand(quote != std::string_view::npos, "an attribute without end");
      const auto value = decoded(tag.substr(equals + 2, quote - equals - 2));
      demand(element.attributes.emplace(key, value).second, "an attribute that comes twice");
      tag.remove_prefix(quote + 1);
    }
    all.push_back(std::move(element));
    if (!empty) open.push_back(all.size() - 1);
  }
  demand(open.empty() && !all.empty(), "an element without end");
  return all;
}

std::vector<std::string> texts(const std::string& svg) {
  std::vector<std::string> result;
  for (const auto& element : elements_of(svg))
    if (element.name == "text") result.push_back(element.text);
  return result;
}

// The strokes of one line: a list of points for each "M".
using Strokes = std::vector<std::vector<std::pair<double, double>>>;

std::vector<Strokes> lines(const std::string& svg) {
  std::vector<Strokes> result;
  for (const auto& element : elements_of(svg)) {
    const auto kind = element.attributes.find("class");
    if (element.name != "path" || kind == element.attributes.end() ||
        !kind->second.starts_with("line"))
      continue;
    const std::string& data = element.attributes.at("d");
    if (data.ends_with("h22")) continue;  // a sample of the legend
    Strokes strokes;
    for (auto at = data.find_first_of("ML"); at != data.npos;
         at = data.find_first_of("ML", at + 1)) {
      std::size_t space = 0;
      const double x = std::stod(data.substr(at + 1, 20), &space);
      if (data[at] == 'M') strokes.emplace_back();
      strokes.back().emplace_back(x, std::stod(data.substr(at + 1 + space, 20)));
    }
    result.push_back(std::move(strokes));
  }
  return result;
}

bool has(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("a chart is well-formed XML with title, labels and round ticks, and needs no script") {
  const auto svg = line_chart({{.label = "train", .x = {0, 50, 100}, .y = {2.3, 0.9, 0.31}},
                               {.label = "eval", .x = {50, 100}, .y = {1.0, 0.4}}},
                              {.title = "Loss", .y_label = "loss"});
  const auto shown = texts(svg);
  for (const char* text : {"Loss", "train", "eval", "step", "loss", "0", "0.5", "1.0", "1.5", "2.0",
                           "2.5", "20", "100"})
    CHECK(has(shown, text));
  CHECK(svg.find("script") == std::string::npos);
  CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
  CHECK(lines(svg).size() == 2);
}

TEST_CASE("the same values give the same bytes") {
  const std::vector<Series> series = {{.label = "a", .y = {1, 3, 2}}};
  CHECK(line_chart(series) == line_chart(series));
  const accel_test::ScratchFolder folder;
  accel::write_line_chart(folder / "new/loss.svg", series);
  std::ifstream file(folder / "new/loss.svg");
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == line_chart(series));
}

TEST_CASE("points stand where their values say") {
  const auto svg = line_chart({{.label = "a", .x = {0, 5, 10}, .y = {0, 1, 0.5}}},
                              {.width = 500, .height = 300});
  const auto stroke = lines(svg).at(0).at(0);
  REQUIRE(stroke.size() == 3);
  const auto [left, bottom] = stroke[0];
  const auto [middle, top] = stroke[1];
  const auto [right, half] = stroke[2];
  CHECK(right == 500 - 24);
  CHECK(bottom == 300 - 50);
  CHECK(std::abs(middle - (left + right) / 2) <= 0.1);
  CHECK(std::abs(half - (top + bottom) / 2) <= 0.1);
}

TEST_CASE("values that are not finite are gaps, and a lone value is a dot") {
  const auto svg =
      line_chart({{.label = "a", .y = {1, 2, not_a_number, 3, infinity, 4, 5, 6, -infinity}}});
  const auto strokes = lines(svg).at(0);
  REQUIRE(strokes.size() == 3);
  CHECK(strokes[0].size() == 2);
  CHECK(strokes[1].size() == 1);
  CHECK(strokes[2].size() == 3);
  CHECK(svg.find("h0") != std::string::npos);
}

TEST_CASE("a logarithmic axis spaces decades evenly, and leaves out what has no logarithm") {
  const auto svg = line_chart({{.label = "a", .y = {1000, 100, 10, 1, 0, -5, 1}}}, {.log_y = true});
  const auto strokes = lines(svg).at(0);
  REQUIRE(strokes.size() == 2);
  REQUIRE(strokes[0].size() == 4);
  const double step = strokes[0][1].second - strokes[0][0].second;
  CHECK(step > 0);
  CHECK(std::abs(strokes[0][3].second - strokes[0][2].second - step) <= 0.2);
  for (const char* tick : {"1", "10", "100", "1000"}) CHECK(has(texts(svg), tick));
}

TEST_CASE("a long series is thinned, and its extremes stay") {
  std::vector<double> values(1'000'000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<double>(i) / 1000);
  values[123'456] = 9;
  values[654'321] = -9;
  const auto svg = line_chart({{.label = "a", .y = values}});
  CHECK(svg.size() < 60'000);
  const auto stroke = lines(svg).at(0).at(0);
  double top = 1e9, bottom = -1e9;
  for (const auto& [x, y] : stroke) {
    top = std::min(top, y);
    bottom = std::max(bottom, y);
  }
  // The axis is -10 .. 10, from pixel 390 up to 18.
  CHECK(std::abs(top - (390 - 0.95 * (390 - 18))) <= 0.1);
  CHECK(std::abs(bottom - (390 - 0.05 * (390 - 18))) <= 0.1);
}

TEST_CASE("smoothing draws a running mean over the pale values") {
  const auto svg = line_chart({{.label = "a", .y = {1, 0, 0}}}, {.smoothing = 0.5});
  const auto drawn = lines(svg);
  REQUIRE(drawn.size() == 2);
  CHECK(drawn[0].at(0).at(0) == drawn[1].at(0).at(0));
  const double zero = drawn[0].at(0).at(1).second, one = drawn[0].at(0).at(0).second;
  // Weights 1/4 and 1/2 of 1 and 0: a third. Then 1/8 of 7/8: a seventh.
  CHECK(std::abs((zero - drawn[1].at(0).at(1).second) / (zero - one) - 1. / 3) < 0.01);
  CHECK(std::abs((zero - drawn[1].at(0).at(2).second) / (zero - one) - 1. / 7) < 0.01);
}

TEST_CASE("names cannot break the file") {
  const std::string name = "a<b> & \"c\" \x01\xff ü";
  const auto svg = line_chart({{.label = name, .y = {1, 2}}, {.label = name, .y = {2, 1}}},
                              {.title = name, .x_label = name, .y_label = name});
  const std::string shown = "a<b> & \"c\"  \xEF\xBF\xBD ü";
  const auto all = texts(svg);
  CHECK(std::count(all.begin(), all.end(), shown) == 5);
}

TEST_CASE("without a value to draw, the chart says so") {
  for (const bool log_y : {false, true})
    for (const auto& values : {std::vector<double>{}, {not_a_number, -infinity}}) {
      const std::vector<Series> series(values.empty() ? 0 : 2, Series{.label = "a", .y = values});
      const auto svg = line_chart(series, {.log_y = log_y});
      CHECK(has(texts(svg), "no values to draw"));
    }
}

TEST_CASE("mistakes in what to draw are errors") {
  CHECK_THROWS_AS(line_chart({{.label = "a", .x = {1}, .y = {1, 2}}}), accel::Error);
  CHECK_THROWS_AS(line_chart({}, {.width = 10}), accel::Error);
  CHECK_THROWS_AS(line_chart({}, {.smoothing = 1}), accel::Error);
  CHECK_THROWS_AS(line_chart({}, {.smoothing = not_a_number}), accel::Error);
}

TEST_CASE("any values give a well-formed picture with every point inside") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Series> series(1 + random() % 8);
    for (auto& each : series) {
      each.label = std::string(random() % 30, 'x');
      each.x.clear();
      const std::size_t count = random() % 50;
      for (std::size_t i = 0; i < count; ++i) {
        const auto draw = [&]() -> double {
          switch (random() % 8) {
            case 0: return not_a_number;
            case 1: return random() % 2 ? infinity : -infinity;
            case 2: return std::numeric_limits<double>::max() * (random() % 2 ? 1 : -1);
            case 3: return 0;
            default: return std::pow(10, static_cast<double>(random() % 20) - 10);
          }
        };
        each.x.push_back(draw());
        each.y.push_back(draw());
      }
    }
    const ChartOptions options{.title = "t",
                               .y_label = "y",
                               .width = 240 + static_cast<int>(random() % 600),
                               .height = 160 + static_cast<int>(random() % 400),
                               .log_y = random() % 2 == 0,
                               .smoothing = random() % 2 ? 0.9 : 0.0};
    const auto svg = line_chart(series, options);
    REQUIRE(svg.find("nan") == std::string::npos);
    REQUIRE(svg.find("inf") == std::string::npos);
    for (const auto& strokes : lines(svg))
      for (const auto& stroke : strokes)
        for (const auto& [x, y] : stroke) {
          REQUIRE(x >= 0);
          REQUIRE(x <= options.width);
          REQUIRE(y >= 0);
          REQUIRE(y <= options.height);
        }
  }
}
