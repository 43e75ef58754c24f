// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The rounds of a stream as batches of this rank: from its own reading, compared with that of the
// others, or from rank 0. Comes after stream_reader.hpp, wire_batch.hpp and batch_slice.hpp;
// stream_epoch.hpp hands out what comes from here.
//
// With several ranks there is one exchange a round, in all modes, since nothing else tells a rank
// that another one's stream has ended or failed. Everything is learnt by all ranks in the same call.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/data/batch_reader.hpp>
#include <accel/data/batch_slice.hpp>
#include <accel/data/collate.hpp>
#include <accel/data/loader_epoch.hpp>
#include <accel/data/loader_options.hpp>
#include <accel/data/prefetcher.hpp>
#include <accel/data/stream_reader.hpp>
#include <accel/data/wire_batch.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

/// A function that makes a batch of the samples of a stream: by value, a std::vector of them.
template <class Collate, class Stream>
concept StreamCollateFor =
    (std::copy_constructible<Collate> &&
     std::invocable<Collate&, std::vector<detail::SampleOf<Stream>>>) ||
    detail::unmet<"accel: a collate function of a stream needs to take a std::vector of samples; "
                  "use a copyable function object, or leave it out",
                  Collate, Stream>;

namespace detail {

/// What is known of a round before its batch is handed out.
struct TurnFacts {
  std::vector<std::int64_t> found{};  ///< see RoundPlan::exists
  std::string state{};                ///< the stream's own position behind the round
  std::exception_ptr failure{};       ///< why there is no round: on all ranks, if they exchange
};

/// What every rank found, of what each of them says; a failure of one is one of all, and so are
/// streams that cannot be of one epoch. Every rank must call this.
void compare_turns(TurnFacts& facts, const Communicator& communicator, const RoundPlan& plan,
                   std::int64_t round);

/// The bytes of a round, and what is said with them.
struct Parcel {
  TurnFacts facts{};
  at::Tensor bytes{};
};

/// Rank 0's parcel on every rank; a failure of rank 0 is one of all. Every rank must call this.
void deliver(Parcel& parcel, const Communicator& communicator);

/// The bytes of a batch and the facts; of the facts alone where `writer` is empty.
at::Tensor wrap(const TurnFacts& facts, const WireWriter& writer);

/// Says once more, in the sentence of another rank, what `failure` says.
std::string text_of_failure(const std::exception_ptr& failure);

template <StreamDataset Stream, class Collate, class Slice>
class StreamFeed {
  using Samples = std::vector<SampleOf<Stream>>;

 public:
  using Batch = std::remove_cvref_t<std::invoke_result_t<Collate&, Samples>>;

  static_assert(SliceFor<Slice, Batch>);

  struct Turn {
    TurnFacts facts{};
    std::optional<Batch> batch{};  ///< this rank's, if it has a part in the round
  };

  StreamFeed(const SharedStream<Stream>& shared, Collate collate, Slice slice,
             const DataLoaderOptions& options, const LoaderPlacement& placement,
             const RoundPlan& plan, const StreamStart& start)
      : collate_(std::move(collate)),
        slice_(std::move(slice)),
        plan_(plan),
        rank_(placement.process_index),
        communicator_(placement.communicator),
        exchanges_(communicator_.size() > 1 && !runs_alone(placement, plan)),
        pins_(options.non_blocking && placement.device && placement.device->is_cuda()),
        round_(start.first_round),
        made_(start.first_round) {
    if (plan_.options().dispatch && rank_ != 0) return;
    reader_ = std::make_unique<StreamReader<Stream>>(shared, plan_, rank_, start);
    if (options.num_workers == 0) return;
    const IntraopThreads keep;
    prefetcher_.emplace(
        PrefetchRange{.first = 0,
                      .last = std::numeric_limits<std::int64_t>::max(),
                      .workers = 1,
                      .capacity = options.prefetch_factor},
        [this](int, std::int64_t) { return make(); }, IntraopThreads::use_one_here);
  }

  /// Whether the ranks tell each other what they find. Without that, a failure is only this rank's.
  [[nodiscard]] bool exchanges() const noexcept { return exchanges_; }

  /// The next round. Every rank must call this, where exchanges().
  [[nodiscard]] Turn next() {
    Made made;
    if (reader_) made = prefetcher_ ? prefetcher_->next() : make();
    const auto round = round_++;
    if (!plan_.options().dispatch) {
      if (exchanges_) compare_turns(made.turn.facts, communicator_, plan_, round);
      return std::move(made.turn);
    }
    Parcel parcel{std::move(made.turn.facts), std::move(made.bytes)};
    if (exchanges_) deliver(parcel, communicator_);
    Turn turn{std::move(parcel.facts), std::move(made.turn.batch)};
    if (turn.facts.failure || !plan_.exists(turn.facts.found)) return turn;
    if constexpr (can_travel<Batch>::value) {
      if (!turn.batch) {
        WireReader reader(parcel.bytes);
        turn.batch.emplace(reader.template one<Batch>());
      }
    }
    cut_own_part(turn);
    return turn;
  }

 private:
  struct Made {
    Turn turn{};
    at::Tensor bytes{};
  };

  /// Ranks of an epoch that may be uneven do not wait for each other. Rank 0 can only deal out to
  /// ranks that listen.
  static bool runs_alone(const LoaderPlacement& placement, const RoundPlan& plan) noexcept {
    return placement.allow_uneven_batches && !plan.options().dispatch && !plan.fills();
  }

  [[nodiscard]] Made make() {
    Made made;
    auto& [turn, bytes] = made;
    auto round = reader_->next();
    turn.facts = {{round.found}, std::move(round.state), round.failure};
    if (!round.samples.empty()) {
      try {
        turn.batch.emplace(std::invoke(collate_, std::move(round.samples)));
        if (plan_.options().dispatch && exchanges_) {
          if constexpr (can_travel<Batch>::value) {
            WireWriter writer;
            writer.add(*turn.batch);
            bytes = wrap(turn.facts, writer);
          }
        } else if (pins_) {
          transform_tensors(*turn.batch, to_pinned_memory);
        }
      } catch (...) {
        const auto first = made_ * plan_.read_size();
        turn.facts.failure = failure_of(
            round.found > 0
                ? fmt::format("making a batch of the samples {} to {} of the stream failed: ",
                              first, first + round.found - 1)
                : std::string("making a batch of repeated samples of the stream failed: "));
        turn.batch.reset();
      }
    }
    ++made_;
    return made;
  }

  void cut_own_part(Turn& turn) {
    const auto shares = plan_.shares(turn.facts.found);
    std::int64_t rows = 0;
    for (const auto& share : shares) rows += share.given;
    const auto& own = shares[static_cast<std::size_t>(rank_)];
    if (own.given == 0) {
      turn.batch.reset();
    } else if (own.given < rows) {
      const RowRange range{own.first, own.given, rows};
      try {
        if constexpr (std::is_same_v<Slice, DefaultSlice> && std::is_same_v<Batch, Samples>)
          cut_elements(*turn.batch, range);  // not collated
        else
          turn.batch = slice_(std::as_const(*turn.batch), range);
      } catch (...) {
        turn.facts.failure = std::current_exception();
        communicator_.leave_word(text_of_failure(turn.facts.failure));
      }
    }
  }

  Collate collate_;
  Slice slice_;
  RoundPlan plan_;
  int rank_;
  Communicator communicator_;
  bool exchanges_;
  bool pins_;
  std::int64_t round_;  // that next() gives next
  std::int64_t made_;   // that make() makes next, perhaps on a thread
  std::unique_ptr<StreamReader<Stream>> reader_;
  std::optional<Prefetcher<Made>> prefetcher_;  // last: its thread uses what stands above
};

}  // namespace detail
}  // namespace accel
