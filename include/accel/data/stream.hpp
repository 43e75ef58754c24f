// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a stream is: something that gives one sample after the other until it ends. Ranges, and
// functions that make a stream for each epoch, are turned into one here. Beside dataset.hpp, whose
// datasets give any sample that they are asked for. Needs no LibTorch.
#pragma once

#include <accel/detail/error.hpp>
#include <accel/detail/unmet.hpp>

#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>

namespace accel {
namespace detail {

template <class T>
inline constexpr bool is_a_sample = false;
template <std::copy_constructible T>
inline constexpr bool is_a_sample<std::optional<T>> = true;

template <class T>
concept GivesNext =
    requires(T& stream) { requires is_a_sample<std::remove_cvref_t<decltype(stream.next())>>; };

template <class T>
concept StartsAgain = requires(T& stream) { stream.reset(); };

template <class T>
concept TakesEpoch = requires(T& stream, std::int64_t epoch) { stream.set_epoch(epoch); };

template <class T>
concept KnowsPosition = requires(T& stream, const nlohmann::json& state) {
  { std::as_const(stream).state() } -> std::convertible_to<nlohmann::json>;
  stream.load_state(state);
};

}  // namespace detail

/// A dataset that is read in its own order:
///   next()                    std::optional of a sample, which can be copied; empty at the end, and
///                             from then on
///   and one of
///   reset()                   start again: called before each epoch, the first too
///   a copy constructor        the stream is left as it is, and a copy of it read in each epoch
/// and if it has them
///   set_epoch(n)              called before an epoch starts
///   size()                    samples in an epoch, so that the loader has a size()
///   state(), load_state(json) its own position, so that an epoch is resumed without reading what
///                             came before
template <class Stream>
concept StreamDataset =
    (detail::GivesNext<Stream> &&
     (detail::StartsAgain<Stream> || std::copy_constructible<Stream>)) ||
    detail::unmet<
        "accel: a stream needs next() that returns a std::optional of a sample that can be "
        "copied, and reset() or a copy constructor; add them, or use a range",
        Stream>;

namespace detail {

template <GivesNext Stream>
using SampleOf = typename std::remove_cvref_t<decltype(std::declval<Stream&>().next())>::value_type;

template <class Range>
concept SampleRange = std::ranges::input_range<Range> && !GivesNext<Range> && std::movable<Range> &&
                      std::copy_constructible<std::ranges::range_value_t<Range>>;

/// A range as a stream. One that can be walked once gives one epoch.
template <SampleRange Range>
class RangeStream {
 public:
  explicit RangeStream(Range range) : range_(std::make_unique<Range>(std::move(range))) {}

  void reset() {
    if (!std::ranges::forward_range<Range> && at_)
      fail(ErrorCategory::usage,
           "the range of a stream can be walked once, and another epoch starts; give the loader a "
           "function that makes the range, so that each epoch has its own");
    at_.emplace(std::ranges::begin(*range_));
  }

  std::optional<std::ranges::range_value_t<Range>> next() {
    if (*at_ == std::ranges::end(*range_)) return std::nullopt;
    std::optional<std::ranges::range_value_t<Range>> sample(**at_);
    ++*at_;
    return sample;
  }

  [[nodiscard]] std::size_t size() const
    requires std::ranges::sized_range<const Range>
  {
    return static_cast<std::size_t>(std::ranges::size(std::as_const(*range_)));
  }

 private:
  std::unique_ptr<Range> range_;  // where its iterators stay valid when the stream is moved
  std::optional<std::ranges::iterator_t<Range>> at_;
};

template <class Function>
concept MakesPerEpoch = requires(Function& make, std::int64_t epoch) { make(epoch); };
template <class Function>
concept MakesAgain = requires(Function& make) { make(); };

template <class Function>
auto make_for_epoch(Function& make, std::int64_t epoch) {
  if constexpr (MakesPerEpoch<Function>)
    return make(epoch);
  else
    return make();
}

template <class Function>
concept StreamMaker =
    !GivesNext<Function> && !std::ranges::range<Function> &&
    (MakesPerEpoch<Function> || MakesAgain<Function>) && requires(Function& make) {
      requires GivesNext<decltype(make_for_epoch(make, 0))> ||
                   SampleRange<decltype(make_for_epoch(make, 0))>;
    };

template <class Made>
struct stream_type_of {
  using type = RangeStream<Made>;
};
template <GivesNext Made>
struct stream_type_of<Made> {
  using type = Made;
};

/// What a function makes for each epoch, as a stream.
template <StreamMaker Function>
class MadeStream {
  using Made =
      typename stream_type_of<decltype(make_for_epoch(std::declval<Function&>(), 0))>::type;

 public:
  explicit MadeStream(Function make) : make_(std::move(make)) {}

  void set_epoch(std::int64_t epoch) noexcept { epoch_ = epoch; }

  void reset() {
    made_.reset();  // before the next one is made: both may want the same file
    made_.reset(new Made(make_for_epoch(make_, epoch_)));
    if constexpr (StartsAgain<Made>) made_->reset();
  }

  auto next() { return made_->next(); }

 private:
  Function make_;
  std::int64_t epoch_ = 0;
  std::unique_ptr<Made> made_;
};

}  // namespace detail

/// What a loader of a stream is made of: a stream, a range that is none of std::vector's kind, or a
/// function, of nothing or of the epoch's number, that makes either of them for each epoch.
template <class T>
concept StreamSource = detail::GivesNext<T> || detail::SampleRange<T> || detail::StreamMaker<T>;

namespace detail {

template <StreamSource T>
struct stream_of_source : stream_type_of<T> {};
template <StreamMaker T>
struct stream_of_source<T> {
  using type = MadeStream<T>;
};

/// The type of the stream that a source becomes.
template <StreamSource T>
using stream_type_of_source = typename stream_of_source<T>::type;

}  // namespace detail
}  // namespace accel
