// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The golden traces of two processes. Run under accel-launch: both ranks run every case, each
// against its own part of the trace. Processes, not threads, since each rank draws its dropout from
// the process's default generator.
#include "replay.hpp"

namespace {

using golden::fused_adamw;
using golden::momentum;
using golden::no_schedule;
using golden::replay;

template <int Steps = 1>
using TwoProcesses =
    accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<Steps>, accel::on<accel::cpu>>;

// The ranks meet once; each case prepares its own objects over this connection.
const accel::PartialState& processes() {
  static const accel::PartialState state(accel::device_kind::cpu);
  return state;
}

TEST_CASE("golden: two processes, momentum") {
  TwoProcesses<> accelerator(processes());
  replay("ddp_momentum", accelerator, momentum(), no_schedule());
}

TEST_CASE("golden: two processes, fused AdamW, clipping") {
  TwoProcesses<> accelerator(processes());
  replay("ddp_adamw", accelerator, fused_adamw(), no_schedule());
}

TEST_CASE("golden: two processes, accumulation without communication inside a window") {
  TwoProcesses<2> accelerator(processes());
  replay("ddp_accumulation2", accelerator, fused_adamw(), no_schedule());
  CHECK(accelerator.reductions() == 100);
}

TEST_CASE("golden: two processes, local SGD") {
  TwoProcesses<> accelerator(processes());
  replay("ddp_local_sgd", accelerator, momentum(), no_schedule(), golden::LocalSteps());
  CHECK(accelerator.reductions() == 0);
}

TEST_CASE("golden: two processes, a validation inside the training loop, and the trigger") {
  TwoProcesses<2> accelerator(processes());
  replay("ddp_validation", accelerator, momentum(), no_schedule(), golden::Validation());
}

}  // namespace
