// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Collects what is wrong with a configuration, so that a person hears of all of it at once and not
// of the first thing only. Every reader of a source (file, environment, flags) and the rules
// between keys add to it.
#pragma once

#include <accel/detail/error.hpp>

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace accel {

/// A list of faults, each one sentence that begins with its place ("accel.yaml:3: ...").
class Faults {
 public:
  /// `where` is a file with a line, a variable or a flag; `format` names the value and the fix.
  template <class... Arguments>
  void add(const std::string& where, fmt::format_string<Arguments...> format,
           Arguments&&... arguments) {
    sentences_.push_back(where + ": " + fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  [[nodiscard]] bool empty() const noexcept { return sentences_.empty(); }
  [[nodiscard]] const std::vector<std::string>& sentences() const noexcept { return sentences_; }

  /// Throws Error(config) with all sentences, if there are any.
  void throw_if_any() const {
    if (sentences_.empty()) return;
    if (sentences_.size() == 1) throw Error(ErrorCategory::config, sentences_.front());
    std::string message = fmt::format("{} faults in the configuration:", sentences_.size());
    for (const auto& sentence : sentences_) message += "\n  " + sentence;
    throw Error(ErrorCategory::config, message);
  }

 private:
  std::vector<std::string> sentences_;
};

}  // namespace accel
