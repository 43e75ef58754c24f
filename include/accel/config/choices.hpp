// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The values that a configuration chooses between, and how files, variables and flags spell them
// (Accelerate's spellings). Comes before config.hpp, which holds the chosen values. Owns no
// meaning: policy_names.hpp says which policy each one is.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace accel {

/// How the processes of a job work together.
enum class DistributedType { no, multi_cpu, multi_gpu, fsdp, deepspeed, xla };

/// Number types of parameters and of the computation.
enum class MixedPrecision { no, bf16, fp16, bf16_true };

// g++ 12 takes a scoped enumerator for something that shadows a name of the namespace (the policies
// of the same names); clang and later releases do not. tests/unit/accelerator/prepare.cpp includes
// both.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif

/// FSDP's strategies, in the order of their numbers (from 1).
enum class ShardingStrategy {
  full_shard,
  shard_grad_op,
  no_shard,
  hybrid_shard,
  hybrid_shard_zero2
};

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

/// How FSDP finds the parts of a model that it gathers one by one.
enum class WrapPolicy { transformer_based_wrap, size_based_wrap, no_wrap };

/// Where DeepSpeed puts what it offloads.
enum class OffloadDevice { none, cpu, nvme };

/// The spellings of an enumeration above, in the order of its values.
template <class Choice>
inline constexpr std::array<std::string_view, 0> spellings{};

template <>
inline constexpr std::array<std::string_view, 6> spellings<DistributedType>{
    "NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "XLA"};

template <>
inline constexpr std::array<std::string_view, 4> spellings<MixedPrecision>{"no", "bf16", "fp16",
                                                                           "bf16_true"};

template <>
inline constexpr std::array<std::string_view, 5> spellings<ShardingStrategy>{
    "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};

template <>
inline constexpr std::array<std::string_view, 3> spellings<WrapPolicy>{
    "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};

template <>
inline constexpr std::array<std::string_view, 3> spellings<OffloadDevice>{"none", "cpu", "nvme"};

/// The spelling of one value.
template <class Choice>
constexpr std::string_view spelling(Choice choice) {
  return spellings<Choice>[static_cast<std::size_t>(choice)];
}

}  // namespace accel
