// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts the operators that this thread gives to LibTorch's dispatcher: what was really called, not
// what we say that we called.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace accel::test {

/// Counts, while it lives, operators whose name begins with `prefix` ("c10d::", "aten::_fused").
/// One at a time in a thread.
class CountedOperators {
 public:
  explicit CountedOperators(std::string prefix) {
    prefix_ = std::move(prefix);
    count_ = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          if (std::string_view(call.name()).starts_with(prefix_)) ++count_;
          return nullptr;
        }));
  }
  CountedOperators(const CountedOperators&) = delete;
  CountedOperators& operator=(const CountedOperators&) = delete;
  ~CountedOperators() { at::removeCallback(handle_); }
  [[nodiscard]] int count() const { return count_; }

 private:
  static inline thread_local std::string prefix_;
  static inline thread_local int count_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace accel::test
