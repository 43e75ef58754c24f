// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts the floating-point operations of what runs in a scope: matrix products, convolutions and
// fused attention, with the formulas of Python's torch.utils.flop_counter. Element-wise work is not
// counted, as there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace accel {

/// Counts from its construction to its destruction what this thread runs, and the backward passes
/// that it starts:
///
///     std::int64_t flops = 0;
///     {
///       accel::FlopCounter counter;
///       loss_of(batch).backward();
///       flops = counter.total();
///     }
///
/// Scopes overlap as they like, each counting what is in it; one ends in the thread in which it began.
/// An operator that runs another one is counted once. As in PyTorch, the gradient of the weight of a
/// grouped convolution counts as if it had one group. Unlike there, attention on the CPU counts too.
/// Local.
class FlopCounter {
 public:
  FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  ~FlopCounter();

  [[nodiscard]] std::int64_t total() const;
  /// By operator: "aten::mm" and so on.
  [[nodiscard]] std::map<std::string, std::int64_t> by_operator() const;
  /// Begins again at 0.
  void reset();

 private:
  struct Counts;
  std::shared_ptr<Counts> counts_;
};

}  // namespace accel
