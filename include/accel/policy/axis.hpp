// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The four axes of Accelerator<Backend, Precision, Accumulation, Placement>, as tags. A policy
// names its axis (`using axis = backend_axis;`), so that a type that happens to have the right
// members is no policy by accident, and a policy in the wrong place is refused.
#pragma once

namespace accel {

struct backend_axis {};       ///< how replicas cooperate: backend.hpp
struct precision_axis {};     ///< number types and loss scaling: precision.hpp
struct accumulation_axis {};  ///< micro-batches per optimizer step: accumulation.hpp
struct placement_axis {};     ///< where tensors live: placement.hpp

}  // namespace accel
