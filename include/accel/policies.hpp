// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The door for code that speaks of strategies only as types: every policy, every concept, the rules
// between them. Light: includes nothing of LibTorch and nothing but the standard library (a test
// lists the dependencies). The door for training code is accel.hpp.
#pragma once

#include <accel/policy/accumulation.hpp>  // accumulate<N>, accumulate<dynamic>
#include <accel/policy/axis.hpp>          // the tags that policies name
#include <accel/policy/backend.hpp>       // single, ddp, sharded<Stage, Units>, xla
#include <accel/policy/compatible.hpp>    // which of them go together
#include <accel/policy/device_kind.hpp>   // cpu, cuda, xla, automatic, as values
#include <accel/policy/element_type.hpp>  // number types, as values
#include <accel/policy/extras.hpp>        // offload<...>, recomputed<Units>
#include <accel/policy/placement.hpp>     // on<Device, Extras...>
#include <accel/policy/precision.hpp>     // fp32, bf16, fp16, bf16_true, with_masters<...>
#include <accel/policy/stage.hpp>         // zero1, zero2, zero3, fsdp_zero2, hybrid<Stage>
#include <accel/policy/units.hpp>         // wrap_auto, wrap<Modules...>, wrap_by_size
