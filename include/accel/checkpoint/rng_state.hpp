// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The random generators of this process as named tensors: the default CPU generator, and each CUDA
// device's where there is one. Each rank saves its own (`random_states_<rank>.safetensors`).
// Includes of LibTorch only the tensor.
#pragma once

#include <accel/checkpoint/safetensors.hpp>

#include <string>
#include <vector>

namespace accel {

/// `torch_manual_seed` (5056 bytes, the generator of the CPU) and `torch_cuda_manual_seed.<index>`:
/// Accelerate's names. The bytes are those of Python's `torch.get_rng_state()`.
NamedTensors rng_state();

/// Continues each generator exactly where it was saved. Returns the names of generators that are
/// not here (a CUDA device less than there was). Throws, with nothing changed, if the CPU's state
/// is missing or any is not a generator's state.
std::vector<std::string> load_rng_state(const Safetensors& file);

/// Throws what load_rng_state would, and changes nothing.
void check_rng_state(const Safetensors& file);

}  // namespace accel
