// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// PowerSGD: gradients travel as the product of two thin matrices (Vogels, Karimireddy, Jaggi 2019,
// arXiv:1905.13727), by the rules of PyTorch's powerSGD_hook. Knows tensors and how to sum them over
// ranks, nothing of buckets; ddp.ipp makes a hook of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace accel {

/// Options with the names and defaults of PyTorch's PowerSGDState.
struct PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;  ///< columns of the two matrices
  int64_t start_powerSGD_iter = 1000;  ///< reductions that are exact before the first that is not
  double min_compression_rate = 2;     ///< matrices that get smaller by less travel as they are
  bool use_error_feedback = true;      ///< what was lost is added to the next gradient
  bool warm_start = true;              ///< the last step's matrix is the next one's start
  int64_t random_seed = 0;             ///< of the first matrix; the same on every rank
};

/// Throws Error(config) for a value that cannot be.
void check_power_sgd(const PowerSgdOptions& options);

/// Compresses the gradients of one replica. Every rank makes one with the same options and calls it
/// for the same buckets in the same order.
class PowerSgd {
 public:
  /// Adds a tensor over the ranks, in place.
  using Sum = std::function<void(at::Tensor&)>;

  explicit PowerSgd(const PowerSgdOptions& options);

  /// Replaces a bucket's gradients (views of `buffer`, which has them one after the other) by about
  /// their mean over `ranks`. `last` ends an iteration. Communicates by `sum`, three times at most.
  void reduce(size_t bucket, bool last, at::Tensor buffer, const std::vector<at::Tensor>& gradients,
              int ranks, const Sum& sum);

 private:
  struct Memory {
    at::Tensor error;
    std::vector<at::Tensor> q;  ///< of each compressed gradient
  };

  [[nodiscard]] bool compresses(const at::Tensor& gradient) const;

  PowerSgdOptions options_;
  int64_t reductions_ = 0;
  std::map<size_t, Memory> memory_;  ///< by bucket
};

}  // namespace accel
