// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/document.hpp. YAML is read by yaml-cpp, JSON by nlohmann/json.
#include <accel/config/document.hpp>
#include <accel/config/wording.hpp>

#include <nlohmann/json.hpp>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <map>
#include <sstream>
#include <system_error>

namespace accel::detail {
namespace {

using Kind = Node::Kind;

// A configuration is small. The limits keep aliases that contain themselves, or that double at each
// level, from filling the memory or the stack.
constexpr int deepest = 32;
constexpr int most_nodes = 20'000;

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, text) != words.end();
}

bool is_number(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || (text[0] != '.' && (text[0] < '0' || text[0] > '9'))) return false;
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return stop == text.data() + text.size() && error != std::errc::invalid_argument;
}

Kind kind_of_plain(std::string_view text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return Kind::null;
  if (is_one_of(text, {"true", "True", "TRUE", "false", "False", "FALSE", "yes", "Yes", "YES", "no",
                       "No", "NO", "on", "On", "ON", "off", "Off", "OFF"})) {
    return Kind::boolean;
  }
  return is_number(text) ? Kind::number : Kind::text;
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

// ---- JSON ----

// nlohmann's values do not know their line. Its lexer takes one character after the other, so that
// an iterator which counts newlines is on the line of a key when the parser reports that key.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* position, int* line) : position_(position), line_(line) {}

  reference operator*() const { return *position_; }
  CountingIterator& operator++() {
    if (*position_++ == '\n') ++*line_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return position_ == other.position_; }

 private:
  const char* position_;
  int* line_;
};

// Builds the tree from the parser's reports.
class JsonBuilder {
 public:
  JsonBuilder(Node& root, const int& line) : root_(&root), line_(&line) {}

  bool null() { return add(Kind::null, "null"); }
  bool boolean(bool value) { return add(Kind::boolean, value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { return add(Kind::number, std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) { return add(Kind::number, std::to_string(value)); }
  bool number_float(double, const std::string& text) { return add(Kind::number, text); }
  bool string(const std::string& value) { return add(Kind::text, value); }
  bool binary(const std::vector<std::uint8_t>&) { return false; }
  bool start_object(std::size_t) { return open(Kind::map); }
  bool start_array(std::size_t) { return open(Kind::list); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(const std::string& name) {
    key_ = name;
    key_line_ = *line_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& problem) {
    problem_ = problem.what();
    return false;
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  bool add(Kind kind, std::string text) {
    if (++nodes_ > most_nodes) return refuse("has too many values");
    const bool in_map = !open_.empty() && open_.back()->kind == Kind::map;
    Node node{kind, std::move(text), in_map ? key_line_ : *line_, {}};
    if (open_.empty()) {
      *root_ = std::move(node);
    } else {
      open_.back()->children.emplace_back(in_map ? key_ : std::string(), std::move(node));
    }
    return true;
  }

  bool open(Kind kind) {
    if (open_.size() >= deepest) return refuse("is nested too deeply");
    if (!add(kind, {})) return false;
    open_.push_back(open_.empty() ? root_ : &open_.back()->children.back().second);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  bool refuse(const char* problem) {
    problem_ = problem;
    return false;
  }

  Node* root_;
  const int* line_;
  std::vector<Node*> open_;
  std::string key_;
  int key_line_ = 0;
  int nodes_ = 0;
  std::string problem_;
};

// "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error while ...":
// without the tag, and without the line, which the fault begins with already.
std::string plain_problem(const std::string& problem) {
  for (const auto* const mark : {"syntax error", "attempting", "invalid"}) {
    const auto found = problem.find(mark);
    if (found != std::string::npos) return problem.substr(found);
  }
  return problem;
}

std::optional<Node> parse_json(std::string_view text, const std::string& name, Faults& faults) {
  Node root;
  int line = 1;
  JsonBuilder builder(root, line);
  const bool whole =
      nlohmann::json::sax_parse(CountingIterator(text.data(), &line),
                                CountingIterator(text.data() + text.size(), &line), &builder);
  if (whole) return root;
  faults.add(fmt::format("{}:{}", name, line), "cannot read this as JSON: {}",
             plain_problem(builder.problem()));
  return std::nullopt;
}

bool is_json_object(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{' && nlohmann::json::accept(text);
}

// ---- YAML ----

// Builds the tree from the parser's reports. YAML::LoadAll is not used: it never ends on `{},`,
// which it takes for documents without number, and its nodes can contain themselves.
class YamlBuilder final : public YAML::EventHandler {
 public:
  explicit YamlBuilder(Node& root) : root_(&root) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, anchor, {Kind::null, {}, mark.line + 1, {}});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // yaml-cpp 0.7 turns the escape \N into half a character.
    if (!is_utf8(value)) throw YAML::Exception(mark, "an escape in this text gives no UTF-8");
    if (awaits_key()) {
      key_ = value;
      key_line_ = mark.line + 1;
      has_key_ = true;
      return;
    }
    add(mark, anchor, {tag == "?" ? kind_of_plain(value) : Kind::text, value, mark.line + 1, {}});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchored_.find(anchor);
    if (found == anchored_.end())
      throw YAML::Exception(mark, "this is inside of what it stands for");
    nodes_ += size_of(found->second);
    add(mark, YAML::NullAnchor, found->second);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, Kind::list);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, Kind::map);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node* node;
    YAML::anchor_t anchor;
  };

  [[nodiscard]] bool awaits_key() const {
    return !open_.empty() && open_.back().node->kind == Kind::map && !has_key_;
  }

  static int size_of(const Node& node) {
    int size = 1;
    for (const auto& [key, value] : node.children) size += size_of(value);
    return size;
  }

  Node* add(const YAML::Mark& mark, YAML::anchor_t anchor, Node node) {
    if (awaits_key()) throw YAML::Exception(mark, "a key must be a word");
    if (++nodes_ > most_nodes) throw YAML::Exception(mark, "there are too many values");
    Node* place = root_;
    if (!open_.empty()) {
      auto& parent = *open_.back().node;
      if (has_key_) node.line = key_line_;
      parent.children.emplace_back(has_key_ ? std::move(key_) : std::string(), Node());
      place = &parent.children.back().second;
      has_key_ = false;
    }
    *place = std::move(node);
    if (anchor != YAML::NullAnchor && place->kind != Kind::list && place->kind != Kind::map) {
      anchored_[anchor] = *place;
    }
    return place;
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, Kind kind) {
    if (open_.size() >= deepest) throw YAML::Exception(mark, "this is nested too deeply");
    open_.push_back({add(mark, anchor, {kind, {}, mark.line + 1, {}}), anchor});
  }

  void close() {
    const auto [node, anchor] = open_.back();
    open_.pop_back();
    if (anchor == YAML::NullAnchor) return;
    nodes_ += size_of(*node);  // the copy counts, or nested anchors would be free
    anchored_[anchor] = *node;
  }

  Node* root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchored_;
  std::string key_;
  int key_line_ = 0;
  bool has_key_ = false;
  int nodes_ = 0;
};

// Stops at whatever comes after the first document.
class NoSecondDocument final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    throw YAML::Exception(mark, "a second document begins here; keep one in the file");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

std::optional<Node> parse_yaml(std::string_view text, const std::string& name, Faults& faults) {
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Node root{Kind::map, {}, 1, {}};
    YamlBuilder builder(root);
    NoSecondDocument nothing;
    if (parser.HandleNextDocument(builder)) parser.HandleNextDocument(nothing);
    if (root.kind == Kind::null) root.kind = Kind::map;
    return root;
  } catch (const YAML::Exception& problem) {
    faults.add(fmt::format("{}:{}", name, problem.mark.line + 1), "cannot read this as YAML: {}",
               problem.msg);
  } catch (const std::exception& problem) {
    faults.add(name, "cannot read this as YAML: {}", problem.what());
  }
  return std::nullopt;
}

// ---- both ----

// YAML and JSON readers differ in which of two equal keys counts; neither is what the person meant.
void find_repeated_keys(const Node& node, const std::string& name, Faults& faults) {
  std::map<std::string_view, int> first_line;
  for (const auto& [key, value] : node.children) {
    if (node.kind == Kind::map) {
      const auto [found, added] = first_line.emplace(key, value.line);
      if (!added) {
        faults.add(fmt::format("{}:{}", name, value.line),
                   "{} is given already on line {}; remove one", in_quotes(key), found->second);
      }
    }
    find_repeated_keys(value, name, faults);
  }
}

nlohmann::json to_json_value(const Node& node) {
  switch (node.kind) {
    case Kind::null: return nullptr;
    case Kind::boolean:
      return is_one_of(node.text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"});
    case Kind::number: {
      auto number = nlohmann::json::parse(node.text, nullptr, false);
      return number.is_number() ? number : nlohmann::json(node.text);
    }
    case Kind::text: return node.text;
    case Kind::list: {
      auto list = nlohmann::json::array();
      for (const auto& [key, value] : node.children) list.push_back(to_json_value(value));
      return list;
    }
    case Kind::map: break;
  }
  auto map = nlohmann::json::object();
  for (const auto& [key, value] : node.children) map[key] = to_json_value(value);
  return map;
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const auto& [name, value] : children) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string_view kind_name(Node::Kind kind) {
  switch (kind) {
    case Kind::null: return "nothing";
    case Kind::boolean: return "true or false";
    case Kind::number: return "a number";
    case Kind::text: return "a text";
    case Kind::list: return "a list";
    case Kind::map: break;
  }
  return "a section";
}

std::optional<Node> parse_document(std::string_view text, const std::string& name, Faults& faults) {
  if (!is_utf8(text)) {
    faults.add(name, "the file is not UTF-8 text");
    return std::nullopt;
  }
  auto root = name.ends_with(".json") || is_json_object(text) ? parse_json(text, name, faults)
                                                              : parse_yaml(text, name, faults);
  if (!root) return std::nullopt;
  if (root->kind != Kind::map) {
    faults.add(name, "a configuration is a list of `key: value` lines; this is {}",
               kind_name(root->kind));
    return std::nullopt;
  }
  find_repeated_keys(*root, name, faults);
  return root;
}

bool is_plain_text(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_safe = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') ||
           is_one_of(std::string_view(&c, 1), {"_", "/", ".", "-"});
  };
  return !text.empty() && (is_letter(text[0]) || text[0] == '/') &&
         std::ranges::all_of(text, is_safe) && kind_of_plain(text) == Kind::text &&
         !is_one_of(text, {"y", "Y", "n", "N"});
}

std::string json_text(const Node& node) {
  return to_json_value(node).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Node node_of_json(const std::string& text) {
  Faults faults;
  auto node = parse_json(text, "JSON", faults);
  faults.throw_if_any();
  return std::move(*node);
}

}  // namespace accel::detail
