// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The door for training code: includes LibTorch and everything a training loop uses. Type-level
// code includes policies.hpp instead, which compiles in about a second.
#pragma once

#include <accel/accelerator.hpp>
#include <accel/checkpoint/checkpoint_series.hpp>
#include <accel/checkpoint/module_state.hpp>
#include <accel/checkpoint/rng_state.hpp>
#include <accel/comm/executable_batch_size.hpp>
#include <accel/data/idx.hpp>
#include <accel/data/padding.hpp>
#include <accel/data/samplers.hpp>
#include <accel/detail/version.hpp>
#include <accel/engine/activation_memory.hpp>
#include <accel/engine/device_memory.hpp>
#include <accel/engine/flop_counter.hpp>
#include <accel/engine/local_sgd.hpp>
#include <accel/engine/norms.hpp>
#include <accel/engine/profile.hpp>
#include <accel/engine/recompute.hpp>
#include <accel/engine/seed.hpp>
#include <accel/engine/summary.hpp>
#include <accel/engine/throughput.hpp>
#include <accel/optim/weight_average.hpp>
#include <accel/policies.hpp>
#include <accel/track/chart.hpp>
#include <accel/track/early_stopping.hpp>
#include <accel/track/history.hpp>
#include <accel/track/logging.hpp>
#include <accel/track/memory.hpp>
#include <accel/track/progress.hpp>

#include <torch/torch.h>
