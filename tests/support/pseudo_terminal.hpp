// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A terminal that a test can look at: the far end of a pseudo-terminal, and just enough of a screen
// (carriage return, new line, erase to the end of the line) to tell what a person would see.
// Nothing but that is understood: any other control character is an error, and so is a line that
// reaches the last column, since a real terminal would wrap it.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace accel_test {

class PseudoTerminal {
 public:
  explicit PseudoTerminal(int columns) : columns_(columns) {
    struct winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    if (::openpty(&near_, &far_, nullptr, nullptr, &size) != 0)
      throw std::runtime_error("no pseudo-terminal");
    ::fcntl(near_, F_SETFL, O_NONBLOCK);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  ~PseudoTerminal() {
    ::close(near_);
    ::close(far_);
  }

  /// What a program under test writes to.
  int descriptor() const { return far_; }

  void resize(int columns) {
    columns_ = columns;
    struct winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    ::ioctl(far_, TIOCSWINSZ, &size);
  }

  /// The lines on the screen by now, from the top, without blanks at their ends.
  const std::vector<std::string>& screen() {
    for (const unsigned char c : drain()) receive(c);
    for (auto& line : lines_) line.erase(line.find_last_not_of(' ') + 1);
    return lines_;
  }

  /// How often a line was begun anew since the last call: the number of times a status was drawn.
  int redraws() {
    screen();
    return std::exchange(redraws_, 0);
  }

 private:
  std::string drain() {
    std::string bytes;
    char block[4096];
    for (ssize_t n; (n = ::read(near_, block, sizeof block)) > 0;)
      bytes.append(block, static_cast<std::size_t>(n));
    return bytes;
  }

  void receive(unsigned char c) {
    std::string& line = lines_.back();
    if (!escape_.empty() || c == 0x1B) {
      escape_ += static_cast<char>(c);
      if (escape_ == "\033[K") {
        line.erase(column_);
        escape_.clear();
        ++redraws_;
      } else if (escape_.size() >= 3) {
        throw std::runtime_error("an escape sequence that this terminal does not know");
      }
    } else if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      lines_.emplace_back();
    } else if (c < 0x20) {
      throw std::runtime_error("a control character on the screen");
    } else {
      line.resize(column_,
                  ' ');  // whatever stood there was erased before, or this throws the test off
      line += static_cast<char>(c);
      ++column_;
      if (width(line) >= columns_) throw std::runtime_error("the line wraps: " + line);
    }
  }

  static int width(std::string_view text) {
    int count = 0;
    for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    return count;
  }

  int columns_;
  int near_ = -1;
  int far_ = -1;
  std::vector<std::string> lines_{""};
  std::size_t column_ = 0;
  std::string escape_;
  int redraws_ = 0;
};

/// A pipe whose near end a test reads: what a program writes when nobody watches.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  int descriptor() const { return ends_[1]; }

  /// The lines written since the last call.
  std::vector<std::string> lines() {
    std::string bytes;
    char block[4096];
    for (ssize_t n; (n = ::read(ends_[0], block, sizeof block)) > 0;)
      bytes.append(block, static_cast<std::size_t>(n));
    std::vector<std::string> result;
    for (std::size_t start = 0; start < bytes.size();) {
      const std::size_t end = bytes.find('\n', start);
      if (end == std::string::npos)
        throw std::runtime_error("a line without an end: " + bytes.substr(start));
      result.push_back(bytes.substr(start, end - start));
      start = end + 1;
    }
    return result;
  }

 private:
  int ends_[2] = {-1, -1};
};

}  // namespace accel_test
