// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// recomputed<Units>: what autograd saves while a unit runs is dropped when the unit is done, and
// computed again when backward asks for it; for modules that know nothing of it. LibTorch has no
// hooks of modules, so that a unit runs from the first operation on one of its parameters until the
// first on one of another unit's. Its operations are observed (operator_tape.hpp), and autograd is
// given hooks for what it saves. prepared_model.hpp opens a scope around each forward; the function
// for one call of one's own is recompute.hpp.
#pragma once

#include <accel/engine/sharded/unit_rules.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

namespace accel {

/// What happened to the units of a model that is recomputed, so far. A unit counts each time that it
/// runs in a forward with gradients.
struct RecomputeReport {
  int64_t recorded = 0;    ///< runs of units
  int64_t kept = 0;        ///< of these, those that keep what was saved; see `why_kept`
  int64_t recomputed = 0;  ///< runs again in backward
  std::string why_kept{};  ///< the last reason
};

namespace detail {

/// Where a thread has an accelerator's forward in progress: the engine of it.
class RecomputedUnits {
 public:
  /// Cuts the module as a backend would. The parameters that no rule claims (those of an embedding or
  /// a head) are of no unit: what they save is kept.
  RecomputedUnits(const torch::nn::Module& module, const UnitRule& rule);
  ~RecomputedUnits();
  RecomputedUnits(const RecomputedUnits&) = delete;
  RecomputedUnits& operator=(const RecomputedUnits&) = delete;

  [[nodiscard]] RecomputeReport report() const;

  /// A forward of the module in this thread. Without gradients, and inside another one of the same
  /// model, it does nothing.
  class Scope {
   public:
    explicit Scope(const std::shared_ptr<RecomputedUnits>& units);
    ~Scope();
    Scope(Scope&& other) noexcept;
    Scope& operator=(Scope&&) = delete;

   private:
    struct Recording;
    std::unique_ptr<Recording> recording_;
  };

 private:
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

}  // namespace detail
}  // namespace accel
