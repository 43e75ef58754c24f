// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/json_document.hpp, by nlohmann/json.
#include <accel/config/json_document.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace accel::detail {
namespace {

using Kind = Node::Kind;

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
      open_.back()->children.push_back({in_map ? key_ : std::string(), std::move(node)});
    }
    return true;
  }

  bool open(Kind kind) {
    if (open_.size() >= deepest_node) return refuse("is nested too deeply");
    if (!add(kind, {})) return false;
    open_.push_back(open_.empty() ? root_ : &open_.back()->children.back().value);
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

nlohmann::json to_json_value(const Node& node) {
  switch (node.kind) {
    case Kind::null: return nullptr;
    case Kind::boolean: return is_true(node.text);
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

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
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
