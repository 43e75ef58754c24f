// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What every engine that trains one module on several ranks needs: that the ranks have the same
// module, that they begin with the same values, and what to say where a reduction failed. Comes
// before ddp.hpp and sharded/.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/engine/gradients.hpp>

#include <torch/nn/module.h>

#include <exception>
#include <string>
#include <vector>

namespace accel::detail {

/// Throws Error(collective) on every rank if the ranks' options differ (as lines of text), or their
/// parameters or buffers in number, name, dtype, shape, order or in what is frozen. Every rank must
/// call this.
void require_same_module(const Communicator& communicator, const std::string& options,
                         const std::vector<NamedParameter>& parameters,
                         const torch::nn::Module& module);

/// Gives every rank rank 0's parameters and buffers. Every rank must call this.
void broadcast_module(const Communicator& communicator,
                      const std::vector<NamedParameter>& parameters,
                      const torch::nn::Module& module);

/// Throws Error(collective) on every rank, naming the first parameter whose bits are not those that
/// rank 0 has, and the ranks. Reads all of them: for debug mode. Every rank must call this.
void require_same_values(const Communicator& communicator,
                         const std::vector<NamedParameter>& parameters);

/// Gives every rank the buffers of rank `root`. Every rank must call this.
void broadcast_buffers(const Communicator& communicator, const torch::nn::Module& module, int root);

/// Throws Error(collective) for what came out of a backward, if a failed collective did it.
void explain_reduction(const Communicator& communicator, const std::exception& failure);

}  // namespace accel::detail
