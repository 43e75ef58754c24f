// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Values given to a sharded parameter by `Tensor::set_data`, which no dispatcher sees: module.to(),
// vector_to_parameters. Its body is the only file that knows the interface behind Tensor's members
// for autograd, which gains members between releases of LibTorch. Beside sharded_dispatch.hpp.
#pragma once

namespace accel::detail {

/// Takes the place of LibTorch's own for sharded parameters, once for this process; for all other
/// tensors it goes on as before.
void install_sharded_assignment();

}  // namespace accel::detail
