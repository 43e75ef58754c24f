// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The names of the generated types are those that the configuration layer spells.
#include <iostream>
#include <string_view>

std::string_view plain_backend();
std::string_view sharded_backend();
std::string_view json_backend();

int main() {
  std::cout << plain_backend() << '\n' << sharded_backend() << '\n' << json_backend() << '\n';
  const bool equal = plain_backend() == "ddp" && json_backend() == "single" &&
                     sharded_backend() == "sharded<hybrid<zero3>, wrap<BlockImpl, my::HeadImpl>>";
  return equal ? 0 : 1;
}
