// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The loader of a stream, as the user makes it and as an accelerator places it: what
// data_loader.hpp, loader.hpp and prepared_loader.hpp are for a dataset whose samples have numbers.
#pragma once

#include <accel/data/collate.hpp>
#include <accel/data/dataset.hpp>
#include <accel/data/dataset_stream.hpp>
#include <accel/data/loader_cursor.hpp>
#include <accel/data/loader_options.hpp>
#include <accel/data/round_plan.hpp>
#include <accel/data/stream.hpp>
#include <accel/data/stream_epoch.hpp>
#include <accel/data/stream_feed.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

namespace accel {
namespace detail {

/// Throws Error(config) for a value that a loader of a stream cannot have. `can_travel`: whether its
/// batches can be sent to other ranks.
void check_stream_options(const DataLoaderOptions& options, const LoaderPlacement& placement,
                          bool can_travel);

RoundPlan make_round_plan(const DataLoaderOptions& options, const LoaderPlacement& placement);

std::shared_ptr<LoaderCursor> make_stream_cursor(const DataLoaderOptions& options,
                                                 const LoaderPlacement& placement);

/// Throws Error, on every rank, where ranks would read different things, or where they might get
/// different numbers of batches. `samples`: of an epoch, where that is known. Every rank must call
/// this.
void require_even_rounds(const DataLoaderOptions& options, const LoaderPlacement& placement,
                         std::optional<std::int64_t> samples);

/// Samples of an epoch, where the stream knows.
template <class Stream>
std::optional<std::int64_t> stream_size(const Stream& stream) {
  if constexpr (Counted<Stream>) {
    if (const std::optional<std::size_t> size = stream.size())
      return static_cast<std::int64_t>(*size);
  }
  return std::nullopt;
}

/// A range of the batches of a stream that can be walked once an epoch. Copies share stream and
/// position.
template <StreamDataset Stream, StreamCollateFor<Stream> Collate, class Slice>
class StreamLoaderBase {
  using Feed = StreamFeed<Stream, Collate, Slice>;

 public:
  using Batch = typename Feed::Batch;
  using iterator = BatchIterator<StreamEpoch<Feed>>;

  /// The rest of an epoch: what skip_first_batches() returns.
  class Rest {
   public:
    [[nodiscard]] iterator begin() const { return loader_.iterate(skip_); }
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }
    /// Batches that iteration yields.
    [[nodiscard]] std::int64_t size() const
      requires Counted<Stream>
    {
      return std::max<std::int64_t>(0, loader_.size() - skip_);
    }

   private:
    friend class StreamLoaderBase;
    Rest(const StreamLoaderBase& loader, std::int64_t skip) : loader_(loader), skip_(skip) {}
    StreamLoaderBase loader_;
    std::int64_t skip_;
  };

  /// Starts the epoch epoch(), or goes on with the one that load_state() left off in. With several
  /// ranks, every rank must call this and go on to the same batch.
  [[nodiscard]] iterator begin() const { return iterate(0); }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

  /// Batches that this rank gets in an epoch, for a stream that knows its size().
  [[nodiscard]] std::int64_t size() const
    requires Counted<Stream>
  {
    const auto samples = stream_size(stream());
    if (!samples)
      fail(ErrorCategory::usage,
           "the size() of a stream is empty, and that of its loader was asked for; count the "
           "batches in a loop");
    return plan_.batches(*samples, placement_.process_index);
  }

  /// Samples that all ranks together take in a step.
  [[nodiscard]] std::int64_t total_batch_size() const { return plan_.total_batch_size(); }

  /// The epoch that is running, or the next one. Counts up by itself when all batches were
  /// processed.
  [[nodiscard]] std::int64_t epoch() const noexcept { return cursor_->epoch(); }
  /// The next iteration is epoch `epoch`.
  void set_epoch(std::int64_t epoch) { cursor_->set_epoch(epoch); }

  /// A range of the next epoch's batches without its first `batches`, which are read and thrown
  /// away. This loader stays whole.
  [[nodiscard]] Rest skip_first_batches(std::int64_t batches) const {
    if (batches < 0)
      fail(ErrorCategory::usage, "{} batches cannot be skipped; use 0 or more", batches);
    return Rest(*this, batches);
  }

  /// The position, for a checkpoint. In a loop, the batch being processed counts as done.
  [[nodiscard]] LoaderState state() const { return cursor_->state(); }
  /// The next iteration goes on at `state`. See LoaderCursor::load_state.
  void load_state(const LoaderState& state) { cursor_->load_state(state); }

  [[nodiscard]] Stream& stream() const noexcept { return *shared_.stream; }
  [[nodiscard]] const DataLoaderOptions& options() const noexcept { return options_; }
  [[nodiscard]] const std::shared_ptr<LoaderCursor>& cursor() const noexcept { return cursor_; }

 protected:
  StreamLoaderBase(SharedStream<Stream> shared, Collate collate, Slice slice,
                   const DataLoaderOptions& options, LoaderPlacement placement)
      : shared_(std::move(shared)),
        collate_(std::move(collate)),
        slice_(std::move(slice)),
        options_(options),
        placement_(std::move(placement)),
        plan_(make_round_plan(options_, placement_)) {
    check_stream_options(options_, placement_, can_travel<Batch>::value);
    cursor_ = make_stream_cursor(options_, placement_);
  }

  SharedStream<Stream> shared_;
  Collate collate_;
  Slice slice_;
  DataLoaderOptions options_;
  LoaderPlacement placement_;

 private:
  [[nodiscard]] iterator iterate(std::int64_t skip) const {
    const auto make_feed = [this](const StreamStart& start) {
      return std::make_unique<Feed>(shared_, collate_, slice_, options_, placement_, plan_, start);
    };
    return iterator(
        std::make_unique<StreamEpoch<Feed>>(make_feed, options_, placement_, plan_, cursor_, skip));
  }

  RoundPlan plan_;
  std::shared_ptr<LoaderCursor> cursor_;
};

}  // namespace detail

template <StreamDataset Stream, StreamCollateFor<Stream> Collate, class Slice>
class PreparedStreamLoader;

/// A stream in batches. Copies share stream and position. Made by data_loader(). It can be iterated
/// as it is, as one process; an accelerator's prepare() makes a PreparedStreamLoader of it.
template <StreamDataset Stream, StreamCollateFor<Stream> Collate = DefaultCollate,
          class Slice = DefaultSlice>
class StreamLoader : public detail::StreamLoaderBase<Stream, Collate, Slice> {
  using Base = detail::StreamLoaderBase<Stream, Collate, Slice>;

 public:
  StreamLoader(std::shared_ptr<Stream> stream, const DataLoaderOptions& options = {},
               Collate collate = {}, Slice slice = {})
      : Base({check(std::move(stream))}, std::move(collate), std::move(slice), options, {}) {}

  /// This rank's loader, at `placement`. Every rank must call this; see require_even_rounds.
  [[nodiscard]] auto prepared(LoaderPlacement placement) const {
    detail::require_even_rounds(this->options_, placement, detail::stream_size(this->stream()));
    return PreparedStreamLoader<Stream, Collate, Slice>(*this, std::move(placement));
  }

 private:
  friend class PreparedStreamLoader<Stream, Collate, Slice>;

  StreamLoader(detail::SharedStream<Stream> stream, Collate collate, Slice slice,
               const DataLoaderOptions& options)
      : Base(std::move(stream), std::move(collate), std::move(slice), options, {}) {}

  static std::shared_ptr<Stream> check(std::shared_ptr<Stream> stream) {
    if (!stream)
      detail::fail(ErrorCategory::usage, "a loader was given a null pointer to a dataset");
    return stream;
  }
};

namespace detail {
template <class T>
inline constexpr bool is_stream_loader = false;
template <class Stream, class Collate, class Slice>
inline constexpr bool is_stream_loader<StreamLoader<Stream, Collate, Slice>> = true;
}  // namespace detail

/// The batches that one rank gets of a StreamLoader. Copies share stream and position; the
/// StreamLoader keeps a position of its own.
template <StreamDataset Stream, StreamCollateFor<Stream> Collate, class Slice>
class PreparedStreamLoader : public detail::StreamLoaderBase<Stream, Collate, Slice> {
  using Base = detail::StreamLoaderBase<Stream, Collate, Slice>;

 public:
  /// Throws Error(config) where the options do not fit the number of processes.
  PreparedStreamLoader(const StreamLoader<Stream, Collate, Slice>& loader,
                       LoaderPlacement placement)
      : Base(loader.shared_, loader.collate_, loader.slice_, loader.options_,
             std::move(placement)) {}

  /// A loader as this one was made of, of the same stream, at its beginning.
  [[nodiscard]] StreamLoader<Stream, Collate, Slice> unprepared() const {
    return {this->shared_, this->collate_, this->slice_, this->options_};
  }
};

/// A loader of a stream, of a range that has no numbered samples, or of what a function makes for
/// each epoch. `slice` cuts a rank's part out of a batch that was dealt out (dispatch_batches).
///
///     auto loader = accel::data_loader(read_lines, {.batch_size = 64, .dispatch_batches = true});
template <StreamSource Source, class Collate = DefaultCollate, class Slice = DefaultSlice>
  requires(!MapDataset<Source>)
[[nodiscard]] auto data_loader(Source source, const DataLoaderOptions& options = {},
                               Collate collate = {}, Slice slice = {}) {
  using Stream = detail::stream_type_of_source<Source>;
  return StreamLoader<Stream, Collate, Slice>(std::make_shared<Stream>(std::move(source)), options,
                                              std::move(collate), std::move(slice));
}

/// A loader of a stream that others hold too.
template <StreamDataset Stream, class Collate = DefaultCollate, class Slice = DefaultSlice>
  requires(!MapDataset<Stream>)
[[nodiscard]] auto data_loader(std::shared_ptr<Stream> stream,
                               const DataLoaderOptions& options = {}, Collate collate = {},
                               Slice slice = {}) {
  return StreamLoader<Stream, Collate, Slice>(std::move(stream), options, std::move(collate),
                                              std::move(slice));
}

template <class Stream, class Collate, class Slice>
[[nodiscard]] auto skip_first_batches(
    const detail::StreamLoaderBase<Stream, Collate, Slice>& loader, std::int64_t batches) {
  return loader.skip_first_batches(batches);
}

}  // namespace accel
