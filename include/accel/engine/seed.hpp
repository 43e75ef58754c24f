// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One call that seeds everything LibTorch draws from, and asks it for deterministic kernels. Loaders
// take their order from the seed, too (data/loader_options.hpp).
#pragma once

#include <cstdint>

namespace accel {

struct SeedOptions {
  /// Added to the seed: give `process_index()` where ranks are to draw different numbers (dropout),
  /// Accelerate's `device_specific`. `prepare` of a model does so to ranks that were seeded alike
  /// (AcceleratorOptions::seed_per_rank); the order of samples stays that of rank 0.
  int process_index = 0;

  /// Kernels that give the same bits each run; an operation without one throws LibTorch's error.
  bool deterministic = false;
};

/// Seeds the default generators of the CPU and of every device. Local.
void set_seed(std::uint64_t seed, const SeedOptions& options = {});

}  // namespace accel
