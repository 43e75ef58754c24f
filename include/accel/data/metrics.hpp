// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What the ranks computed of their batches, gathered without the samples that were repeated to make
// the last batches even: Accelerator::gather_for_metrics. Comes after comm/collectives.hpp and
// active_loaders.hpp, which knows the batch that is being processed.
#pragma once

#include <accel/comm/collectives.hpp>
#include <accel/comm/communicator.hpp>
#include <accel/comm/object_collectives.hpp>
#include <accel/data/active_loaders.hpp>
#include <accel/data/batch_slice.hpp>
#include <accel/detail/nested.hpp>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accel::detail {

/// Gathers the metrics of one accelerator.
class MetricsGatherer {
 public:
  /// `warn` is told, once each, that values are gathered outside of a loop, and that no number of rows a
  /// sample explains those that ranks have.
  MetricsGatherer(std::shared_ptr<const ActiveLoaders> loaders,
                  std::function<void(const std::string&)> warn)
      : loaders_(std::move(loaders)), warn_(std::move(warn)) {}

  /// Tensors, by rows. Every rank must call this.
  template <NestedTensors T>
  [[nodiscard]] T gather(const Communicator& communicator, const T& value, const CallSite& where) {
    const auto shares = shares_with_repeats(communicator.size());
    if (shares.empty()) return accel::gather(communicator, value, where);
    return map_tensors(value, [&](const at::Tensor& tensor, int64_t part) {
      return gather_rows(communicator, tensor, shares, where, part);
    });
  }

  /// Lists of objects, by elements. Every rank must call this.
  template <JsonObject T>
  [[nodiscard]] std::vector<T> gather(const Communicator& communicator,
                                      const std::vector<T>& objects, const CallSite& where) {
    const auto shares = shares_with_repeats(communicator.size());
    auto parts = all_gather_object(communicator, objects, where);
    if (!shares.empty()) {
      std::vector<int64_t> lengths;
      for (const auto& part : parts) lengths.push_back(std::ssize(part));
      if (const auto each = per_sample(lengths, shares))
        for (size_t rank = 0; rank < parts.size(); ++rank)
          parts[rank].erase(parts[rank].begin() + shares[rank].real * *each, parts[rank].end());
    }
    std::vector<T> all;
    for (auto& part : parts)
      all.insert(all.end(), std::make_move_iterator(part.begin()),
                 std::make_move_iterator(part.end()));
    return all;
  }

 private:
  /// Of the round that is being processed, if there are repeats in it; the same on every rank.
  [[nodiscard]] std::vector<RoundShare> shares_with_repeats(int num_processes);
  [[nodiscard]] at::Tensor gather_rows(const Communicator& communicator, const at::Tensor& tensor,
                                       const std::vector<RoundShare>& shares, const CallSite& where,
                                       int64_t part);
  /// Rows or elements of a sample, where ranks have `lengths` of them; none where they have none.
  [[nodiscard]] std::optional<int64_t> per_sample(const std::vector<int64_t>& lengths,
                                                  const std::vector<RoundShare>& shares);

  std::shared_ptr<const ActiveLoaders> loaders_;
  std::function<void(const std::string&)> warn_;
  bool told_of_loop_ = false;
  bool told_of_rows_ = false;
};

}  // namespace accel::detail
