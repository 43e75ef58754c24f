// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/policy_header.hpp.
#include <accel/config/policy_header.hpp>
#include <accel/config/cpp_name.hpp>
#include <accel/config/expression.hpp>
#include <accel/config/wording.hpp>
#include <accel/detail/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

namespace accel {
namespace {

using detail::Expression;

// Policies are in accel; the classes inside wrap<...> are the user's, and numbers are numbers.
std::string in_cpp(const Expression& expression, std::set<std::string>& modules,
                   bool of_user = false) {
  if (of_user) {
    if (!detail::is_qualified_name(expression.name) || !expression.arguments.empty()) {
      detail::fail(ErrorCategory::config,
                   "{}: wrap<...> in a generated header needs plain names of classes; derive a "
                   "class from it and name that one",
                   detail::in_quotes(detail::to_text(expression)));
    }
    modules.insert(expression.name);
    return "::" + expression.name;
  }
  const bool number = std::isdigit(static_cast<unsigned char>(expression.name[0])) != 0;
  std::string text = (number ? "" : "accel::") + expression.name;
  if (expression.arguments.empty()) return text;
  const char* before = "<";
  for (const auto& argument : expression.arguments) {
    text += before + in_cpp(argument, modules, expression.name == "wrap");
    before = ", ";
  }
  return text + ">";
}

// `namespace my { struct BlockImpl; }`, so that the header needs no header of the user's.
std::string declaration(const std::string& module) {
  const auto end = module.rfind("::");
  if (end == std::string::npos) return "struct " + module + ";\n";
  return fmt::format("namespace {} {{\nstruct {};\n}}\n", module.substr(0, end),
                     module.substr(end + 2));
}

// A comment ends with its line.
std::string on_one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char letter) { return letter < 0x20 || letter == '\\'; }, '?');
  return text;
}

}  // namespace

std::string policy_header(const PolicyNames& names, const PolicyHeaderOptions& options) {
  if (!detail::is_qualified_name(options.name_space)) {
    detail::fail(ErrorCategory::config,
                 "--namespace {}: this is not the name of a namespace; write app or my::app",
                 detail::in_quotes(options.name_space));
  }
  std::set<std::string> modules;
  const auto cpp = [&](const std::string& name) {
    return in_cpp(detail::parse_expression(name), modules);
  };
  const std::array types{cpp(names.backend), cpp(names.precision), cpp(names.accumulation),
                         cpp(names.placement)};

  std::string text =
      fmt::format("// Made by accel-config from {}. Change that file, not this one.\n"
                  "#pragma once\n\n#include <accel/policies.hpp>\n\n",
                  on_one_line(options.source));
  for (const auto& module : modules) text += declaration(module);
  if (!modules.empty()) text += "\n";
  text += fmt::format("namespace {} {{\n\n", options.name_space);
  constexpr std::array<std::string_view, 4> axes{"Backend", "Precision", "Accumulation",
                                                 "Placement"};
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    text += fmt::format("using {} = {};\n", axes[axis], types[axis]);
  }
  text += fmt::format(
      "\n/// apply<accel::Accelerator> is the accelerator that the configuration describes.\n"
      "template <template <class, class, class, class> class Template>\n"
      "using apply = Template<Backend, Precision, Accumulation, Placement>;\n\n"
      "}}  // namespace {}\n",
      options.name_space);
  return text;
}

}  // namespace accel
