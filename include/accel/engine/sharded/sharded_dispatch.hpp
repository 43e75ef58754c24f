// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What makes an unmodified module train on sharded parameters: LibTorch's dispatcher asks this file
// first for every operation on a tensor with the engine's key (flat_storage.hpp), and for no other.
// It has the gatherer fetch what the operation reads, runs it, and keeps what it wrote. Comes after
// unit_gatherer.hpp.
#pragma once

namespace accel::detail {

/// Takes up the key for this process, once; another call does nothing. Costs operations on other
/// tensors nothing. Throws Error(usage) where another library has taken the key.
void install_sharded_dispatch();

}  // namespace accel::detail
