// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/progress.hpp>
#include <accel/track/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace accel {
namespace {

using Seconds = std::chrono::duration<double>;

// The part of the past that stays in the rate at each draw; tqdm's value.
constexpr double decay = 0.7;

// A wider bar says no more.
constexpr int widest_bar = 40;
constexpr int narrowest_bar = 8;

// Columns that a terminal gives to the text. fmt knows wide characters, and tells through the
// padding it leaves out.
int columns_of(std::string_view text) {
  return static_cast<int>(2 * text.size() - fmt::formatted_size("{:<{}}", text, text.size()));
}

// The start of `text` that fits, marked if something is missing.
std::string fitted(std::string_view text, int columns, std::string_view mark) {
  if (columns_of(text) <= columns) return std::string(text);
  const int room = columns - columns_of(mark);
  if (room <= 0) return fmt::format("{:.>{}}", "", std::max(columns, 0));
  int points = room;
  std::string start;
  do start = fmt::format("{:.{}}", text, points--);
  while (columns_of(start) > room && points >= 0);
  return start + std::string(mark);
}

// One line, whatever a user passes: control characters would move the cursor.
std::string single_line(std::string text) {
  text = detail::valid_utf8(std::move(text));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  return text;
}

std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto whole = static_cast<std::int64_t>(seconds);
  const auto days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, whole % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{:02}:{:02}", minutes, whole % 60);
}

std::string three_digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

// "16.3 step/s", "1.25k step/s"; a slow loop is told in seconds a step.
std::string rate_text(double rate, const std::string& unit) {
  if (!std::isfinite(rate) || rate <= 0) return "? " + unit + "/s";
  if (rate < 1) return three_digits(1 / rate) + " s/" + unit;
  constexpr std::array suffixes = {"", "k", "M", "G"};
  std::size_t suffix = 0;
  for (; rate >= 999.5 && suffix + 1 < suffixes.size(); ++suffix) rate /= 1000;
  return fmt::format("{}{} {}/s", three_digits(rate), suffixes[suffix], unit);
}

std::string bar(double fraction, int width, bool unicode) {
  constexpr std::array eighths = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int parts = unicode ? 8 : 1;
  const int filled = static_cast<int>(std::floor(std::clamp(fraction, 0.0, 1.0) * width * parts));
  std::string text;
  for (int i = 0; i < filled / parts; ++i) text += unicode ? "█" : "#";
  int blanks = width - filled / parts;
  if (filled % parts != 0) {
    text += eighths[static_cast<std::size_t>(filled % parts)];
    --blanks;
  }
  return text + std::string(static_cast<std::size_t>(blanks), ' ');
}

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return value.dump();
}

double fraction_of(std::int64_t count, std::int64_t total) {
  if (total <= 0) return 1;
  return std::clamp(static_cast<double>(count) / static_cast<double>(total), 0.0, 1.0);
}

// Rounded down: 100 % means that nothing is left.
int percent_of(std::int64_t count, std::int64_t total) {
  return static_cast<int>(std::floor(fraction_of(count, total) * 100));
}

double seconds_left(std::int64_t count, std::int64_t total, double rate) {
  if (count >= total) return 0;
  return static_cast<double>(total - count) / rate;
}

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      active_(options_.enabled),
      count_(options_.initial),
      measured_count_(count_) {
  if (!options_.console) options_.console = Console::standard_error();
  options_.description = single_line(std::move(options_.description));
  options_.unit = single_line(std::move(options_.unit));
  start_ = drawn_ = measured_ = options_.clock();
  if (active_ && options_.console->is_terminal()) options_.console->show(this, bar_line(start_, 0));
}

Progress::~Progress() { close(); }

void Progress::update(std::int64_t count) {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  count_ += count;
  const Time now = options_.clock();
  // What comes after the last step (an evaluation, say) should not look at a bar that is nearly
  // full.
  const bool just_complete =
      options_.console->is_terminal() && count != 0 && count_ == options_.total;
  if (!just_complete && !is_due(now)) return;
  measure(now);
  draw(now);
}

void Progress::set_postfix(const Record& values) {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  postfix_.clear();
  for (const auto& [key, value] : values.values().items())
    postfix_ += fmt::format(", {}={}", key, value_text(value));
  postfix_ = single_line(std::move(postfix_));
}

void Progress::set_description(std::string description) {
  const std::lock_guard lock(mutex_);
  options_.description = single_line(std::move(description));
  const Time now = options_.clock();
  if (active_ && is_due(now)) draw(now);
}

void Progress::close() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(active_, false)) return;
  const Time now = options_.clock();
  const double rate = mean_rate(now);
  if (!options_.leave)
    options_.console->hide(this);
  else if (options_.console->is_terminal())
    options_.console->leave(this, bar_line(now, rate));
  else
    options_.console->line(plain_line(now, rate));
}

std::int64_t Progress::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool Progress::is_due(Time now) const {
  return now - drawn_ >=
         (options_.console->is_terminal() ? options_.redraw_every : options_.line_every);
}

void Progress::draw(Time now) {
  const double rate = recent_seconds_ > 0 ? recent_count_ / recent_seconds_ : 0;
  if (options_.console->is_terminal())
    options_.console->show(this, bar_line(now, rate));
  else
    options_.console->line(plain_line(now, rate));
  drawn_ = now;
}

void Progress::measure(Time now) {
  recent_count_ = decay * recent_count_ + static_cast<double>(count_ - measured_count_);
  recent_seconds_ = decay * recent_seconds_ + Seconds(now - measured_).count();
  measured_ = now;
  measured_count_ = count_;
}

double Progress::mean_rate(Time now) const {
  const double seconds = Seconds(now - start_).count();
  return seconds > 0 ? static_cast<double>(count_ - options_.initial) / seconds : 0;
}

std::string Progress::bar_line(Time now, double rate) const {
  const std::string gone = clock_text(Seconds(now - start_).count());
  const std::string memory = options_.memory ? ", " + format_bytes(process_memory().resident) : "";
  const std::string tail = rate_text(rate, options_.unit) + postfix_ + memory + "]";
  const std::string head = options_.description.empty() ? "" : options_.description + ": ";
  // The last column stays free: a terminal moves to the next line when it is written.
  const int columns = options_.console->columns() - 1;
  const std::string_view mark = options_.console->is_unicode() ? "…" : "...";

  if (!options_.total)
    return fitted(fmt::format("{}{} {} [{}, {}", head, count_, options_.unit, gone, tail), columns,
                  mark);

  const std::int64_t total = *options_.total;
  const std::string before = fmt::format("{}{:3}%", head, percent_of(count_, total));
  const std::string after = fmt::format(" {}/{} [{}<{}, {}", count_, total, gone,
                                        clock_text(seconds_left(count_, total, rate)), tail);
  const int room = columns - columns_of(before) - columns_of(after) - 2;
  if (room < narrowest_bar) return fitted(before + after, columns, mark);
  // In steps of four, so that a bar does not tremble with the digits behind it.
  const int width = std::min(room, widest_bar) / 4 * 4;
  return before + "|" + bar(fraction_of(count_, total), width, options_.console->is_unicode()) +
         "|" + after;
}

std::string Progress::plain_line(Time now, double rate) const {
  std::string line = options_.description.empty() ? "" : options_.description + ": ";
  const std::string gone = clock_text(Seconds(now - start_).count());
  if (options_.total)
    line += fmt::format("{}/{} {} ({}%), {} gone, {} to go", count_, *options_.total, options_.unit,
                        percent_of(count_, *options_.total), gone,
                        clock_text(seconds_left(count_, *options_.total, rate)));
  else
    line += fmt::format("{} {}, {} gone", count_, options_.unit, gone);
  line += ", " + rate_text(rate, options_.unit) + postfix_;
  if (options_.memory) line += ", " + format_bytes(process_memory().resident);
  return line;
}

}  // namespace accel
