// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads a stream in rounds and keeps this process's part of each, with the repeats that fill the
// last one up. Comes after stream.hpp and round_plan.hpp; knows nothing of the other ranks.
// stream_feed.hpp makes batches of what is read, on a thread if asked to.
#pragma once

#include <accel/data/round_plan.hpp>
#include <accel/data/stream.hpp>
#include <accel/detail/error.hpp>

#include <nlohmann/json.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace accel::detail {

/// To be called while an exception is handled: that exception, nested in an Error whose sentence
/// begins with `what`.
[[nodiscard]] std::exception_ptr failure_of(const std::string& what) noexcept;

/// A stream that loaders share, and whether one of them is reading it.
template <StreamDataset Stream>
struct SharedStream {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<std::atomic<bool>> is_read = std::make_shared<std::atomic<bool>>(false);
};

/// Where the reading of an epoch begins.
struct StreamStart {
  std::int64_t epoch = 0;
  std::int64_t first_round = 0;  ///< the rounds before are read and thrown away
  std::string state{};           ///< the stream's own, in JSON, behind round `state_rounds`
  std::int64_t state_rounds = 0;
};

/// One epoch of a stream. Nothing is read before the first next().
template <StreamDataset Stream>
class StreamReader {
 public:
  using Sample = SampleOf<Stream>;

  struct Round {
    std::vector<Sample> samples{};  ///< this process's, repeats included
    std::int64_t found = 0;         ///< samples that the stream gave for the round
    std::string state{};            ///< the stream's own behind the round, where it has one
    std::exception_ptr failure{};   ///< why there is no round
  };

  /// Throws Error(usage) where the stream itself, not a copy, is being read by another iteration.
  StreamReader(const SharedStream<Stream>& shared, const RoundPlan& plan, int rank,
               StreamStart start)
      : plan_(plan), start_(std::move(start)) {
    if constexpr (StartsAgain<Stream>) {
      if (shared.is_read->exchange(true))
        fail(ErrorCategory::usage,
             "the stream of a loader is being read by another loop, and both would move it; give "
             "each loader a stream of its own, or make the stream copyable, without reset()");
      is_read_ = shared.is_read;
      stream_ = shared.stream;
    } else {
      stream_ = std::make_shared<Stream>(std::as_const(*shared.stream));
    }
    if (plan_.options().dispatch || plan_.options().already_sharded) {
      keep_ = plan_.read_size();
    } else {
      begin_ = rank * plan_.slice();
      keep_ = plan_.slice();
    }
  }
  ~StreamReader() {
    if (is_read_) is_read_->store(false);
  }
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  /// The next round. It has no samples once the stream has ended, unless this process goes on with
  /// repeats as long as others have samples. Never throws what reading throws: see `failure`.
  [[nodiscard]] Round next() {
    Round round;
    try {
      if (!started_) begin();
      if (!failure_) round = read();
    } catch (...) {
      failure_ = failure_of(fmt::format("reading sample {} of the stream failed: ", number_));
    }
    if (failure_) return {.failure = failure_};
    fill(round);
    return round;
  }

 private:
  void restart() {
    if constexpr (TakesEpoch<Stream>) stream_->set_epoch(start_.epoch);
    if constexpr (StartsAgain<Stream>) stream_->reset();
  }

  void begin() {
    started_ = true;
    restart();
    std::int64_t at = 0;
    if constexpr (KnowsPosition<Stream>) {
      if (!start_.state.empty()) {
        // What the last round may be filled with is at the beginning.
        if (plan_.fills()) static_cast<void>(read());
        stream_->load_state(nlohmann::json::parse(start_.state));
        ended_ = false;
        at = start_.state_rounds;
        number_ = at * plan_.read_size();
      }
    }
    for (; at < start_.first_round && !ended_; ++at) static_cast<void>(read());
  }

  [[nodiscard]] Round read() {
    Round round;
    while (!ended_ && round.found < plan_.read_size()) {
      auto sample = stream_->next();
      if (!sample) {
        ended_ = true;
        break;
      }
      if (plan_.fills() && number_ < plan_.read_size() && std::ssize(first_samples_) <= number_)
        first_samples_.push_back(*sample);
      if (round.found >= begin_ && round.found < begin_ + keep_)
        round.samples.push_back(std::move(*sample));
      ++round.found;
      ++number_;
    }
    if constexpr (KnowsPosition<Stream>)
      round.state = nlohmann::json(std::as_const(*stream_).state()).dump();
    return round;
  }

  /// Adds the repeats that this process's part of a round lacks.
  void fill(Round& round) const {
    if (!plan_.fills() || first_samples_.empty()) return;
    if (round.found == 0 && !plan_.options().already_sharded) return;
    std::int64_t wanted = keep_;
    if (plan_.options().dispatch) {
      wanted = 0;
      for (const auto& share : plan_.shares({round.found})) wanted += share.given;
    }
    const auto known = std::ssize(first_samples_);
    while (std::ssize(round.samples) < wanted) {
      const auto place = begin_ + std::ssize(round.samples);
      round.samples.push_back(
          first_samples_[static_cast<std::size_t>(repeat_at(place, round.found, known))]);
    }
  }

  RoundPlan plan_;
  StreamStart start_;
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<std::atomic<bool>> is_read_;
  std::int64_t begin_ = 0;  // this process keeps the places [begin_, begin_ + keep_) of a round
  std::int64_t keep_ = 0;
  std::vector<Sample> first_samples_;  // of the epoch, where a last round may need them
  std::int64_t number_ = 0;            // of the sample that is read next
  bool started_ = false;
  bool ended_ = false;
  std::exception_ptr failure_;
};

}  // namespace accel::detail
