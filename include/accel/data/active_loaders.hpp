// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Which loaders are being iterated, innermost last. prepared_loader.hpp enters and leaves;
// accumulation asks whether this is the last batch, and the gathering of metrics how many of its
// samples are real. Needs no LibTorch.
#pragma once

#include <accel/data/round_plan.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace accel {

/// The loaders that are being iterated by the thread that owns this object. A validation loop
/// inside a training loop sees the flags of its own loader, and the training loop sees its own
/// again afterwards.
class ActiveLoaders {
 public:
  /// One iteration. Enters at construction and leaves at destruction, in whatever order iterations
  /// end.
  class Iteration {
   public:
    /// `remainder`, `total_batch_size`: IndexPlan's, of the epoch. A null `loaders` is allowed: nobody
    /// asks then.
    Iteration(std::shared_ptr<ActiveLoaders> loaders, std::int64_t remainder,
              std::int64_t total_batch_size = 1);
    ~Iteration();
    Iteration(Iteration&& other) noexcept;
    Iteration& operator=(Iteration&&) = delete;

    /// The batch that is handed out now is the last one.
    void reached_last_batch() noexcept;

    /// Of a stream, whose rounds are known one by one: the shares of all ranks in the round that is
    /// handed out now, if some of them are no full batch of samples of their own.
    void reached_round(std::vector<RoundShare> shares, std::int64_t remainder) noexcept;

   private:
    struct Flags;
    std::shared_ptr<ActiveLoaders> loaders_;
    std::unique_ptr<Flags> flags_;
    friend class ActiveLoaders;
  };

  ActiveLoaders();
  ~ActiveLoaders();
  ActiveLoaders(const ActiveLoaders&) = delete;
  ActiveLoaders& operator=(const ActiveLoaders&) = delete;

  /// Whether a loader is being iterated.
  [[nodiscard]] bool in_dataloader() const noexcept { return !stack_.empty(); }

  /// Whether the innermost loader has handed out its last batch; true while that batch is
  /// processed, false outside a loop.
  [[nodiscard]] bool end_of_dataloader() const noexcept;

  /// The innermost loader's remainder (see IndexPlan); -1 outside a loop.
  [[nodiscard]] std::int64_t remainder() const noexcept;

  /// The shares of the ranks in the innermost loader's round, where reached_round() said them;
  /// else empty.
  [[nodiscard]] const std::vector<RoundShare>& shares() const noexcept;

  /// The shares of `num_processes` ranks in the innermost loader's round, where some of its samples are
  /// repeats; else empty. The same on every rank.
  [[nodiscard]] std::vector<RoundShare> shares_with_repeats(int num_processes) const;

  /// The innermost loader's samples in a full round of all ranks; 1 outside a loop.
  [[nodiscard]] std::int64_t total_batch_size() const noexcept;

  /// A number for the innermost iteration, never given twice; 0 outside a loop.
  [[nodiscard]] std::uint64_t innermost() const noexcept;

  /// Whether the iteration of that number is still going on.
  [[nodiscard]] bool is_active(std::uint64_t iteration) const noexcept;

 private:
  std::uint64_t iterations_ = 0;
  std::vector<const Iteration::Flags*> stack_;
};

}  // namespace accel
