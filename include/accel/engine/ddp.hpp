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
#include <accel/engine/gradients.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace accel {

/// Options of data-parallel training, with the names and defaults of PyTorch's
/// DistributedDataParallel.
struct DdpOptions {
  int64_t bucket_cap_bytes = 25 << 20;       ///< gradients travel in buckets of about this size
  int64_t first_bucket_cap_bytes = 1 << 20;  ///< the first is smaller, to start early
  bool find_unused_parameters = false;       ///< parameters may take no part in a window
  bool broadcast_buffers = true;             ///< rank 0's buffers on every rank after each window
};

/// Keeps the gradients of one module equal over the ranks. In a job of one process it does nothing.
class DataParallel {
 public:
  /// Compares the ranks' modules, then gives every rank the parameters and buffers of rank 0. Every
  /// rank must call this. Throws Error(collective) on every rank, naming the first parameter that
  /// differs, where the modules do.
  DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
               const DdpOptions& options);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Whether `loss` was computed with any parameter of this module.
  [[nodiscard]] bool reaches(const at::Tensor& loss) const;

  /// Announces that the next backward, of `loss`, is to reduce. Without it gradients stay local and
  /// add up.
  void arm(const at::Tensor& loss);

  /// After that backward: throws Error(collective), naming parameters, if one of them got no
  /// gradient.
  void finish();

  /// Gives every rank the buffers of rank 0. Every rank must call this.
  void broadcast_buffers();

  /// Backward passes that were reduced so far.
  [[nodiscard]] int64_t reductions() const noexcept { return reductions_; }

 private:
  struct Reducer;
  std::shared_ptr<torch::nn::Module> module_;
  Communicator communicator_;
  DdpOptions options_;
  std::vector<NamedParameter> parameters_;
  std::unique_ptr<Reducer> reducer_;
  int64_t reductions_ = 0;
};

}  // namespace accel
