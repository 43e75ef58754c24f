// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training of one module: every rank holds all of it, and backward ends with the same
// mean gradients everywhere. The work is done by c10d::Reducer, the reducer of PyTorch's
// DistributedDataParallel; this file decides when it is armed. It is armed in backward, not in a
// wrapped forward, so that any member function of the module may compute the loss. Comes after
// comm/communicator.hpp; the accelerator keeps one of these a prepared module.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/engine/gradient_wire.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/power_sgd.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace accel {

/// Options of data-parallel training, with the names and defaults of PyTorch's
/// DistributedDataParallel.
struct DdpOptions {
  int64_t bucket_cap_bytes = 25 << 20;       ///< gradients travel in buckets of about this size
  int64_t first_bucket_cap_bytes = 1 << 20;  ///< the first is smaller, to start early
  bool find_unused_parameters = false;       ///< parameters may take no part in a window
  bool broadcast_buffers = true;             ///< rank 0's buffers on every rank after each window
  CommHook comm_hook = CommHook::none;       ///< gradients travel in fewer bytes
  PowerSgdOptions power_sgd{};               ///< of that hook
  bool static_graph = false;     ///< every window uses the same parameters, each as often as before
  bool sync_batch_norm = false;  ///< batch normalization over the batches of all ranks
};

/// Keeps the gradients of one module equal over the ranks. In a job of one process it does nothing.
class DataParallel {
 public:
  /// Compares the ranks' modules and options, then gives every rank the parameters and buffers of
  /// rank 0. Every rank must call this. Throws Error(collective) on every rank, naming the first
  /// parameter or option that differs, and Error(usage) naming a parameter whose gradients are sparse.
  /// The hook of `wire` is that of the options.
  DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
               const DdpOptions& options, GradientWire wire = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Whether any parameter of this module is one of a loss's leaves (gradients.hpp).
  [[nodiscard]] bool is_among(const std::unordered_set<const c10::TensorImpl*>& leaves) const;

  /// Announces that the next backward, of `loss`, is to reduce. Without it gradients stay local and
  /// add up. Where parameters were frozen or unfrozen since the last time, which every rank must do
  /// alike, compares the modules and makes new buckets.
  void arm(const at::Tensor& loss);

  /// After that backward: throws Error(collective), naming parameters, if one of them got no
  /// gradient.
  void finish();

  /// Says that backward threw: what was to be reduced is half done, and this object of no more use.
  void give_up() noexcept {
    broken_ = true;
    armed_loss_.reset();
  }
  [[nodiscard]] bool is_broken() const noexcept { return broken_; }

  /// Throws Error(collective) for what came out of that backward, if a failed collective did it.
  void explain(const std::exception& failure) const;

  /// Whether broadcast_buffers() communicates; the same on every rank.
  [[nodiscard]] bool shares_buffers() const;

  /// Gives every rank the buffers of rank `root`. Every rank must call this.
  void broadcast_buffers(int root = 0);

  /// A loss of zero that is computed with every trained parameter, for a rank that has no batch left
  /// and still takes part in the reductions.
  [[nodiscard]] at::Tensor zero_loss() const;

  /// Backward passes that were reduced so far.
  [[nodiscard]] int64_t reductions() const noexcept { return reductions_; }

  /// What the communication hook remembers of past gradients; null where it remembers nothing.
  [[nodiscard]] PowerSgd* power_sgd() const noexcept { return power_sgd_.get(); }

 private:
  struct Reducer;
  void make_reducer();
  [[noreturn]] void fail_as_broken(const std::string& cause) const;

  std::shared_ptr<torch::nn::Module> module_;
  Communicator communicator_;
  DdpOptions options_;
  GradientWire wire_;
  std::vector<NamedParameter> parameters_;
  std::shared_ptr<PowerSgd> power_sgd_;  ///< outlives reducers
  std::unique_ptr<Reducer> reducer_;
  at::Tensor armed_loss_;  ///< between arm() and finish(), to name what took no part in it
  int64_t reductions_ = 0;
  bool broken_ = false;
};

}  // namespace accel
