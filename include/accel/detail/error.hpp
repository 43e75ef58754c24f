// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The one exception type of the library. Every layer throws it; nothing comes before this file. A
// message is a sentence that names the rank, the parameter or key, the value, and the option that
// fixes it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace accel {

/// What kind of thing went wrong, for a program that wants to react to it.
enum class ErrorCategory {
  config,      ///< a value from a file, the environment or a flag
  usage,       ///< a call that cannot be right, whatever the data
  data,        ///< a dataset, a batch, or a file of data
  collective,  ///< ranks that disagree, are missing or too late
  checkpoint,  ///< a saved state that is missing, damaged or of another model
  launch,      ///< a process that could not be started or did not end well
  numeric,     ///< a value that is not finite where it must be
};

/// The exception that this library throws. `what()` is the whole sentence.
class Error : public std::runtime_error {
 public:
  Error(ErrorCategory category, const std::string& message)
      : std::runtime_error(message), category_(category) {}

  [[nodiscard]] ErrorCategory category() const noexcept { return category_; }

 private:
  ErrorCategory category_;
};

namespace detail {

/// Throws `Error` with a formatted sentence.
template <class... Arguments>
[[noreturn]] void fail(ErrorCategory category, fmt::format_string<Arguments...> format,
                       Arguments&&... arguments) {
  throw Error(category, fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace detail
}  // namespace accel
