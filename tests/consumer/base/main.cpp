// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls into the compiled light library of accel: who am I in this job?
#include <accel/comm/ranks.hpp>

#include <iostream>

int main() {
  const auto nothing = [](const std::string&) -> std::optional<std::string> { return {}; };
  const accel::Ranks ranks = accel::discover_ranks(nothing);
  std::cout << "rank " << ranks.rank << " of " << ranks.size << '\n';
  return ranks.size == 1 ? 0 : 1;
}
