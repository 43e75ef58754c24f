// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Uses the light door of an installed accel. Prints the names of two policies.
#include <accel/policies.hpp>

#include <iostream>

static_assert(accel::ComposablePolicies<accel::ddp, accel::bf16, accel::accumulate<4>,
                                        accel::on<accel::cpu>>);
static_assert(!accel::BackendPolicy<accel::bf16>);

int main() {
  std::cout << accel::ddp::name << ", " << accel::accumulate<4>::name << '\n';
  return accel::ddp::name == "ddp" ? 0 : 1;
}
