// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Which ranks run on which host, as they tell each other on the store at start-up: transports.ipp
// chooses by it what CPU tensors travel over. For the bodies of this layer: includes c10d's store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace accel::detail {

/// Hosts are numbered by their first rank, ranks of a host by their order in the world.
struct HostLayout {
  std::vector<int> host;                ///< of each rank
  std::vector<int> place;               ///< of each rank, among those of its host
  std::vector<std::vector<int>> ranks;  ///< of each host

  /// `identities` has one text for each rank, equal where two share a host.
  [[nodiscard]] static HostLayout of(const std::vector<std::string>& identities);

  [[nodiscard]] int size() const { return static_cast<int>(host.size()); }
  [[nodiscard]] int hosts() const { return static_cast<int>(ranks.size()); }
  /// How many ranks every host has at least.
  [[nodiscard]] int columns() const;
  /// Whether every host has that many.
  [[nodiscard]] bool is_even() const;
};

/// What the ranks found out about sharing memory, the same on all of them.
struct HostSurvey {
  HostLayout layout;
  std::string lack;  ///< the first rank that has no memory to share, and why; empty where all have

  /// Why not all ranks can share memory; empty where they can.
  [[nodiscard]] std::string obstacle() const;
};

/// Every rank must call this, with a store that nothing else uses. Throws c10::Error where a rank
/// does not come in time.
[[nodiscard]] HostSurvey survey_hosts(c10d::Store& store, int rank, int size,
                                      std::chrono::milliseconds timeout);

}  // namespace accel::detail
