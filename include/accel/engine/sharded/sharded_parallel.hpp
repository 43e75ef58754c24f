// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Training of one module whose optimizer state, gradients and parameters are split over the ranks,
// as a stage says (policy/stage.hpp). The module stays what it is: its parameters become tensors
// that are gathered when an operation touches them. Comes last of the sharded engine's files; the
// accelerator keeps one of these a prepared module, as it keeps a DataParallel with ddp.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/engine/ddp.hpp>
#include <accel/engine/deferred_init.hpp>
#include <accel/engine/gradient_wire.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/offload_file.hpp>
#include <accel/engine/sharded/unit_rules.hpp>
#include <accel/policy/backend.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace accel {

namespace detail {

/// What becomes of writes to the memory of a module that was held whole.
enum class Edits : unsigned char {
  none,     ///< there are none
  keep,     ///< each rank's part by the rank that holds it
  discard,  ///< the values are those of before
};

}  // namespace detail

/// Run-time options of sharded training.
struct ShardedOptions {
  int64_t min_num_params = 100'000'000;  ///< of a unit, under wrap_by_size; FSDP's name and default
  int group_size = 0;             ///< ranks of a replica, under hybrid<...>; 0: the ranks of a host
  bool broadcast_buffers = true;  ///< rank 0's buffers on every rank after each window
};

/// What a stage shards, and how a module is cut.
struct ShardingPlan {
  bool shards_gradients = true;        ///< no whole gradient outlives a backward
  bool shards_parameters = true;       ///< parameters are whole only while they are needed
  bool reshards_after_forward = true;  ///< which ends between forward and backward
  bool in_groups = false;              ///< replicas of ShardedOptions::group_size ranks each
  UnitRule units{};
  c10::ScalarType master_type = c10::ScalarType::Undefined;  ///< of the shards; undefined: as the
                                                             ///< parameters
  std::shared_ptr<detail::OffloadFile> file{};  ///< where shards of parameters wait; null: memory
  detail::DeferredTensors deferred{};           ///< what has no values yet,
  c10::Device device = c10::kCPU;               ///< and where it is to have them
};

/// What a rank holds of a sharded model at rest, and what moved, in bytes.
struct ShardingReport {
  int64_t units = 0;
  int64_t parameters = 0;        ///< bytes of the parameters' shards, padding included
  int64_t whole_parameters = 0;  ///< bytes of what is whole now
  int64_t largest_unit = 0;      ///< bytes of the largest unit when it is whole
  int64_t gathers = 0;           ///< of units so far
  int64_t prefetched = 0;        ///< of these, started before they were needed
  int64_t received = 0;          ///< bytes of other ranks' so far: parameters and gradients
};

/// Keeps one module split over the ranks. On one process everything is whole, and nothing is sent.
class ShardedParallel {
 public:
  using Options = ShardedOptions;

  /// Compares the ranks' modules, gives every rank the values of rank 0, and splits them. Every rank
  /// must call this. Throws Error(collective) on every rank, naming the first parameter that differs,
  /// and Error(usage) for parameters that cannot be split.
  ShardedParallel(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
                  const DdpOptions& ddp, const ShardedOptions& options, const ShardingPlan& plan,
                  GradientWire wire = {});
  /// Parameters that are still sharded cannot be used any more: see `unshard`.
  ~ShardedParallel();
  ShardedParallel(const ShardedParallel&) = delete;
  ShardedParallel& operator=(const ShardedParallel&) = delete;

  /// Makes the module plain again: whole parameters, and gradients where they are defined. Every rank
  /// must call this.
  void unshard();

  // What DataParallel has too, with the same meaning: prepared_objects.hpp calls one or the other.
  // `arm` is local; `finish` and `broadcast_buffers` must be called by every rank.
  [[nodiscard]] bool is_among(const std::unordered_set<const c10::TensorImpl*>& leaves) const;
  void arm(const at::Tensor& loss);
  void finish();
  void give_up() noexcept { broken_ = true; }
  [[nodiscard]] bool is_broken() const noexcept { return broken_; }
  void explain(const std::exception& failure) const;
  [[nodiscard]] bool shares_buffers() const;
  void broadcast_buffers(int root = 0);
  [[nodiscard]] int64_t reductions() const noexcept { return reductions_; }

  /// Forgets a backward that threw, so that the next can be run. Every rank must call this.
  void recover();

  /// Throws Error(usage) where a backward that is not reduced would add to reduced gradients. Local.
  void require_cleared() const;

  /// Gathers every unit and holds it; `unhold` ends that, with the same `edits`. Every rank must call
  /// these.
  void hold(detail::Edits edits);
  void unhold(detail::Edits edits);

  [[nodiscard]] ShardingReport report() const;

 private:
  struct Parts;
  void require_shardable() const;
  void fill(const detail::DeferredTensors& deferred);
  void shard(const ShardingPlan& plan);
  void add_unit(const std::string& name, const std::vector<NamedParameter>& named,
                const ShardingPlan& plan);
  [[nodiscard]] int group_size(const ShardingPlan& plan) const;

  std::shared_ptr<torch::nn::Module> module_;
  Communicator communicator_;
  ShardedOptions options_;
  GradientWire wire_;
  std::vector<NamedParameter> parameters_;
  std::unique_ptr<Parts> parts_;
  int64_t reductions_ = 0;
  bool broken_ = false;
};

namespace detail {

/// The tensor that this rank steps on for a parameter: its piece where the parameter is sharded, of
/// one dimension and perhaps empty; else the parameter itself.
[[nodiscard]] at::Tensor local_piece(const at::Tensor& parameter);

/// After a step on pieces of these: begins to bring wholes up to date that stay whole (ZeRO-1 and 2).
/// Every rank must call this.
void refresh_wholes(const std::vector<at::Tensor>& parameters);

/// Has the pieces of sharded parameters take over what the user has made of their `.grad` (cleared it,
/// or given another, whose part is copied), and returns what this rank holds of the gradients: those
/// of whole parameters, and pieces, some of them empty. Local.
std::vector<at::Tensor> follow_user_gradients(const std::vector<at::Tensor>& parameters);

/// Tensors with an entry for each element of some parameters' pieces (an optimizer's averages, say),
/// each whole and of its parameter's shape; and the part of such a tensor that is this rank's. All
/// parameters are sharded. Every rank must call the first.
[[nodiscard]] std::vector<at::Tensor> whole_of(const std::vector<at::Tensor>& parameters,
                                               const std::vector<at::Tensor>& pieces);
[[nodiscard]] at::Tensor piece_of(const at::Tensor& parameter, const at::Tensor& whole);

/// The ranks that hold the pieces of some sharded parameters, all of one model.
[[nodiscard]] Communicator group_of(const std::vector<at::Tensor>& parameters);

/// Whether a parameter is sharded.
[[nodiscard]] bool is_sharded(const at::Tensor& parameter);

}  // namespace detail
}  // namespace accel
