// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/seed.hpp>

#include <ATen/Context.h>

namespace accel {

void set_seed(std::uint64_t seed, const SeedOptions& options) {
  at::manual_seed(seed + static_cast<std::uint64_t>(options.process_index));
  if (!options.deterministic) return;
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

}  // namespace accel
