// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// PowerSGD: gradients travel as the product of two thin matrices (Vogels, Karimireddy, Jaggi 2019,
// arXiv:1905.13727), by the rules of PyTorch's powerSGD_hook. Knows tensors and how to sum them over
// ranks, nothing of reducers; ddp.ipp makes a hook of it. What it remembers is kept by parameter, not
// by bucket as PyTorch does: buckets change where training is resumed or parameters are frozen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
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
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  explicit PowerSgd(const PowerSgdOptions& options);

  /// Replaces a bucket's gradients (views of `buffer`, which has them one after the other), each with
  /// its parameter's name, by about their mean over `ranks`. `last` ends an iteration. Communicates by
  /// `sum`, three times at most.
  void reduce(bool last, at::Tensor buffer, const NamedTensors& gradients, int ranks,
              const Sum& sum);

  /// What the next iteration goes on from: `iterations` (one int64), and of each parameter that was
  /// compressed `<name>.q`, the same on every rank, and `<name>.error`, this rank's own.
  [[nodiscard]] NamedTensors state() const;

  /// Goes on from a state. `own`: it is this rank's; else errors are left out, so that ranks which were
  /// not there when it was saved begin with none. Throws Error(checkpoint) for a tensor that is no part
  /// of a state; nothing has changed then.
  void load_state(const NamedTensors& state, bool own = true);

 private:
  struct Memory {
    at::Tensor error;  ///< of the gradient's shape
    at::Tensor q;
  };

  [[nodiscard]] bool compresses(const at::Tensor& gradient) const;
  /// The first matrix of a parameter: the same on every rank, another in each iteration.
  [[nodiscard]] at::Tensor draw(std::string_view name, int64_t rows, int64_t columns) const;

  PowerSgdOptions options_;
  int64_t iterations_ = 0;
  std::map<std::string, Memory, std::less<>> memory_;  ///< by parameter
};

}  // namespace accel
