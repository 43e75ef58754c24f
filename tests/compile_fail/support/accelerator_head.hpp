// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The head of Accelerator, constrained as the real one is, without its body and so without
// LibTorch: what the compiler says of a refused set of policies depends on the head alone.
#pragma once

#include <accel/policies.hpp>

namespace accel {

template <BackendPolicy Backend = single, PrecisionPolicy Precision = fp32,
          AccumulationPolicy Accumulation = accumulate<1>,
          PlacementPolicy Placement = on<automatic>>
  requires ComposablePolicies<Backend, Precision, Accumulation, Placement>
class Accelerator {
 public:
  void join_uneven_inputs()
    requires JoinsUnevenInputs<Backend>
  {}
  void no_sync()
    requires ReducesOncePerWindow<Backend>
  {}
};

/// The same, for the rule that the engine has to be in this release.
template <BackendPolicy Backend = single, PrecisionPolicy Precision = fp32,
          AccumulationPolicy Accumulation = accumulate<1>,
          PlacementPolicy Placement = on<automatic>>
  requires ComposablePolicies<Backend, Precision, Accumulation, Placement> &&
           HasEngine<Backend, Placement>
class RunnableAccelerator {};

}  // namespace accel
