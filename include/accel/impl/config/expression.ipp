// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/expression.hpp.
#include <accel/config/expression.hpp>
#include <accel/config/wording.hpp>
#include <accel/detail/error.hpp>

#include <cctype>
#include <cstddef>

namespace accel::detail {
namespace {

constexpr int deepest = 16;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Expression whole() {
    Expression result = expression(0);
    skip_space();
    if (position_ != text_.size()) refuse("the end");
    return result;
  }

 private:
  Expression expression(int depth) {
    if (depth > deepest) refuse("fewer brackets");
    Expression result{name(), {}};
    if (!take('<')) return result;
    if (take('>')) return result;
    do {
      result.arguments.push_back(expression(depth + 1));
    } while (take(','));
    if (!take('>')) refuse("',' or '>'");
    return result;
  }

  std::string name() {
    skip_space();
    const std::size_t begin = position_;
    while (position_ < text_.size() && is_name(text_[position_])) ++position_;
    if (position_ == begin) refuse("a name");
    return std::string(text_.substr(begin, position_ - begin));
  }

  bool take(char letter) {
    skip_space();
    if (position_ == text_.size() || text_[position_] != letter) return false;
    ++position_;
    return true;
  }

  void skip_space() {
    while (position_ < text_.size() &&
           std::isspace(static_cast<unsigned char>(text_[position_])) != 0) {
      ++position_;
    }
  }

  static bool is_name(char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == ':';
  }

  [[noreturn]] void refuse(const char* expected) const {
    fail(ErrorCategory::config,
         "{}: this is not the spelling of a policy; character {} should be {}", in_quotes(text_),
         position_ + 1, expected);
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace

Expression parse_expression(std::string_view text) { return Parser(text).whole(); }

std::string to_text(const Expression& expression) {
  std::string text = expression.name;
  if (expression.arguments.empty()) return text;
  const char* before = "<";
  for (const auto& argument : expression.arguments) {
    text += before + to_text(argument);
    before = ", ";
  }
  return text + ">";
}

}  // namespace accel::detail
