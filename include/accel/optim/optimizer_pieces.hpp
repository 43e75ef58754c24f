// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The user's optimizer on sharded parameters: its groups hold this rank's pieces, and its state is
// that of the pieces; to be saved or handed back, both become whole again. Comes before
// prepared_optimizer.hpp, which does this where the backend shards.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace accel::detail {

/// Puts this rank's piece in the place of each sharded parameter of the optimizer's groups, and of
/// what its state has of it. Others stay. Local. Throws Error(usage) for a state of a kind that this
/// library does not know.
void give_pieces(torch::optim::Optimizer& optimizer);

/// The other way: the parameters themselves, `parameters` in the order of the groups, and whole
/// state. In the place of a piece that is of another dtype than its parameter comes a whole copy in
/// that dtype. Every rank must call this.
void give_wholes(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters);

/// Back from `give_wholes`: pieces of what the optimizer holds now.
void take_pieces(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters);

/// Has the state that an optimizer keeps for `from` be that of `to`, in fp32 where `to` is and the
/// state was of 16 bits. Does nothing where there is none.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to);

/// Casts the floating-point state of an optimizer, but for fp64, to a type; of a kind that is not
/// known, nothing.
void cast_state(torch::optim::Optimizer& optimizer, c10::ScalarType type);

}  // namespace accel::detail
