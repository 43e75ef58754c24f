// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A unit: parameters that are gathered and reduced together, the memory they have on this rank, and
// the tensors that stand for them in the user's module and optimizer. Filled by sharded_parallel;
// gathered by unit_gatherer, reduced by unit_reducer.
#pragma once

#include <accel/engine/sharded/flat_storage.hpp>
#include <accel/engine/sharded/unit_layout.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace accel::detail {

class UnitGatherer;

/// One parameter of a unit.
struct ShardedParameter {
  std::string name;
  at::Tensor parameter;  ///< of the module: keyed, of full shape
  at::Tensor gradient;   ///< what its .grad is once it has been reduced: keyed, of full shape
  at::Tensor piece;      ///< this rank's part, of one dimension, perhaps empty: what is stepped on
  at::Tensor gradient_piece;
  Piece part{};
  int64_t offset = 0;  ///< in the whole
  int64_t place = 0;   ///< of the piece, in the shard
  std::vector<int64_t> sizes, strides;
  std::shared_ptr<torch::autograd::Node> accumulator;  ///< where its gradient arrives

  /// Has parameter and piece show what the unit's gradient shard holds.
  void show_gradient();
};

/// A whole that is gathered from shards, and how much of that is up to date.
struct GatheredStorage {
  GatheredStorage(Unit& unit, FlatKind whole_kind, FlatKind shard_kind, const UnitLayout& layout,
                  c10::ScalarType type, c10::ScalarType shard_type, c10::Device device)
      : whole(unit, whole_kind, layout.size(), type, device),
        shard(unit, shard_kind, layout.chunk(), shard_type, device) {}

  FlatStorage whole;
  FlatStorage shard;
  int64_t version = 0;    ///< rises where the shard of any rank is written to
  int64_t gathered = -1;  ///< the version that the whole is of
  int64_t gathers = 0;    ///< that were started: as many on every rank
  [[nodiscard]] bool is_current() const noexcept {
    return whole.is_present() && gathered == version;
  }
};

struct Unit {
  Unit(int number, std::string module_name, UnitLayout where, c10::ScalarType type,
       c10::ScalarType shard_type, c10::Device device)
      : index(number),
        name(std::move(module_name)),
        layout(std::move(where)),
        values(*this, FlatKind::values, FlatKind::value_shard, layout, type, shard_type, device),
        gradients(*this, FlatKind::gradients, FlatKind::gradient_shard, layout, shard_type,
                  shard_type, device) {}
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  int index;
  std::string name;
  UnitLayout layout;
  GatheredStorage values;
  GatheredStorage gradients;
  std::vector<ShardedParameter> parameters;
  UnitGatherer* gatherer = nullptr;  ///< whose it is

  /// The parameter that a tensor of one of this unit's wholes stands for; null for a view of a part.
  [[nodiscard]] ShardedParameter* parameter_of(const at::Tensor& tensor);
  /// This rank's part of the gradients; zeros where it had no memory yet.
  [[nodiscard]] FlatStorage& gradient_shard();
  /// What the user may call it.
  [[nodiscard]] std::string title() const;
};

/// A dense tensor with the strides of a parameter, as one of one dimension in the order of memory.
/// Copies what lies otherwise.
[[nodiscard]] at::Tensor in_memory_order(const at::Tensor& tensor, at::IntArrayRef strides);

}  // namespace accel::detail
