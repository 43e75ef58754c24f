// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// An optimizer whose state waits in a file: it steps some parameters at a time, so that no more than
// their state is in memory. The user's object keeps its state where it always does. Comes after
// engine/offload_file.hpp; prepared_optimizer.hpp has one where the placement offloads.
#pragma once

#include <accel/engine/offload_file.hpp>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace accel::detail {

class OffloadedState {
 public:
  /// Bytes of parameters that are stepped at a time.
  static constexpr std::size_t portion = std::size_t{16} << 20;

  explicit OffloadedState(std::shared_ptr<OffloadFile> file) : file_(std::move(file)) {}

  /// Throws Error(usage) for an optimizer whose state this library does not know.
  static void check(const torch::optim::Optimizer& optimizer);

  /// Runs `step`, which steps the parameters that have a gradient, once for each portion of them.
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& step);

  /// Moves what an optimizer has in memory to the file.
  void move(torch::optim::Optimizer& optimizer);

 private:
  void move(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters);

  std::shared_ptr<OffloadFile> file_;
};

}  // namespace accel::detail
