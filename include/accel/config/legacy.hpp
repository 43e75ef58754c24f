// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Forms of keys that Accelerate wrote once and still reads, translated to today's before a file is
// checked:
//   fp16: true                                   mixed_precision: fp16
//   dynamo_backend: X                            dynamo_config: {dynamo_backend: X}
//   fsdp_config: {min_num_params: 1}             fsdp_config: {fsdp_min_num_params: 1}
//   fsdp_backward_prefetch_policy: X             fsdp_backward_prefetch: X
//   fsdp_reshard_after_forward: FULL_SHARD       fsdp_sharding_strategy: FULL_SHARD   (version 1)
#pragma once

#include <accel/config/node.hpp>

namespace accel::detail {

/// Translates in place; keeps lines. What it does not know it leaves for the check.
void translate_legacy_keys(Node& root);

}  // namespace accel::detail
