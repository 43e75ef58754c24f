// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Prints the four policies that the YAML file chose.
#include <accel_policies.hpp>

#include <iostream>

int main() {
  std::cout << app::Backend::name << ' ' << app::Precision::name << ' ' << app::Accumulation::name
            << ' ' << app::Placement::name << '\n';
}
