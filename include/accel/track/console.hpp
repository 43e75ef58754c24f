// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The stream that people watch, shared by everything that writes to it: lines scroll, and under
// them at most one status line (a progress bar) is drawn over and over. Because both go through
// here, a log line never lands inside a bar. What the status says is progress.hpp's business, what
// the lines say is logging.hpp's.
#pragma once

#include <concepts>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace accel {

class Console {
 public:
  /// Writes to an open file descriptor, which it does not close.
  explicit Console(int descriptor);

  /// Standard error's. There is one a process, as there is one such stream a process: two
  /// accelerators that each had their own would draw over each other.
  static std::shared_ptr<Console> standard_error();

  /// Whether a status can be drawn: a terminal that understands cursor movements.
  [[nodiscard]] bool is_terminal() const noexcept { return terminal_; }
  /// Whether the reader's locale shows characters beyond ASCII.
  [[nodiscard]] bool is_unicode() const noexcept { return unicode_; }
  /// The terminal's width at this moment; 80 where it does not say.
  [[nodiscard]] int columns() const;

  /// Writes whole lines above the status. With `shared_terminal`, a bar that another process may
  /// have drawn at the place of the cursor is wiped first.
  void line(std::string_view text, bool shared_terminal = false);

  /// Draws the status, in place of what was there, also if `owner` is another one.
  void show(const void* owner, std::string text);
  /// Takes the owner's status away, or leaves `last` as an ordinary line in its place.
  void hide(const void* owner);
  void leave(const void* owner, std::string_view last);

  /// Runs `write` with the status out of the way, for a stream that ends up on the same terminal.
  /// `write` may log.
  template <std::invocable Write>
  void interrupt(Write&& write) {
    const std::lock_guard lock(mutex_);
    const Redraw redraw{*this};
    if (!status_.empty()) put(erase);
    std::forward<Write>(write)();
  }

 private:
  static constexpr std::string_view erase = "\r\033[K";

  // Draws the status again at the end of a scope, also when what happened in it has thrown.
  struct Redraw {
    Console& console;
    ~Redraw() {
      if (!console.status_.empty()) console.put(std::string(erase) + console.status_);
    }
  };

  void put(std::string_view bytes) noexcept;

  int descriptor_;
  bool terminal_;
  bool unicode_;
  std::recursive_mutex mutex_;
  const void* owner_ = nullptr;
  std::string status_;
};

}  // namespace accel
