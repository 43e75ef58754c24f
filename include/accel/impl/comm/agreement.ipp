// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/agreement.hpp>

#include <accel/detail/error.hpp>

#include <sstream>

namespace accel {

void detail::require_agreement(const Communicator& communicator, const std::string& lines,
                               std::string_view what_ranks_do, std::string_view cure) {
  const auto all = communicator.all_gather_bytes(lines);
  for (int rank = 1; rank < communicator.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::string here, there;
    while (true) {
      if (!std::getline(first, here)) here = "nothing more";
      if (!std::getline(other, there)) there = "nothing more";
      if (here != there) break;
    }
    fail(ErrorCategory::collective,
         "accel: the ranks {}: rank 0 has '{}' where rank {} has '{}'. {} (this is rank {})",
         what_ranks_do, here, rank, there, cure, communicator.rank());
  }
}

}  // namespace accel
