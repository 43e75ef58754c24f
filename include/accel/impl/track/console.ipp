// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/console.hpp>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace accel {
namespace {

bool understands_movements(int descriptor) {
  const char* kind = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && !(kind && std::string_view(kind) == "dumb");
}

// The variables that setlocale would read, without changing this program's locale.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || *value == '\0') continue;
    const std::string_view locale = value;
    for (const std::string_view codeset : {"UTF-8", "utf-8", "UTF8", "utf8"})
      if (locale.find(codeset) != std::string_view::npos) return true;
    return false;
  }
  return false;
}

std::string with_newline(std::string_view text) {
  std::string line(text);
  if (line.empty() || line.back() != '\n') line += '\n';
  return line;
}

}  // namespace

Console::Console(int descriptor)
    : descriptor_(descriptor),
      terminal_(understands_movements(descriptor)),
      unicode_(locale_is_utf8()) {}

std::shared_ptr<Console> Console::standard_error() {
  static const auto console = std::make_shared<Console>(STDERR_FILENO);
  return console;
}

int Console::columns() const {
  struct winsize size{};
  if (terminal_ && ::ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col;
  return 80;
}

void Console::line(std::string_view text, bool shared_terminal) {
  const std::lock_guard lock(mutex_);
  std::string bytes;
  if (!status_.empty() || (terminal_ && shared_terminal)) bytes = erase;
  // One write, so that lines of several processes do not mix.
  put(bytes + with_newline(text) + status_);
}

void Console::show(const void* owner, std::string text) {
  const std::lock_guard lock(mutex_);
  owner_ = owner;
  status_ = std::move(text);
  put(std::string(erase) + status_);
}

void Console::hide(const void* owner) {
  const std::lock_guard lock(mutex_);
  if (owner_ != owner) return;
  owner_ = nullptr;
  status_.clear();
  put(erase);
}

void Console::leave(const void* owner, std::string_view last) {
  const std::lock_guard lock(mutex_);
  std::string bytes;
  if (!status_.empty()) bytes = erase;
  if (owner_ == owner) {
    owner_ = nullptr;
    status_.clear();
  }
  put(bytes + with_newline(last) + status_);
}

void Console::put(std::string_view bytes) noexcept {
  // A stream that nobody reads any more is no reason to end a training: errors are ignored.
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      struct pollfd ready{descriptor_, POLLOUT, 0};
      if (::poll(&ready, 1, 1000) <= 0) return;
    } else if (written == 0 || errno != EINTR) {
      return;
    }
  }
}

}  // namespace accel
