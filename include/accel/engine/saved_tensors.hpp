// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What autograd saves for backward, given to somebody else to keep. A program without Python is asked
// about it in one way only: by an autograd engine of its own, which saved_tensors.ipp puts in the
// place of LibTorch's. recomputed_units.hpp and offloaded_activations.hpp are such keepers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace torch::autograd {
class SavedVariableHooks;
}

namespace accel::detail {

/// Somebody who keeps, in a thread, what autograd is about to save.
class SavedTensorKeeper {
 public:
  SavedTensorKeeper() = default;
  virtual ~SavedTensorKeeper() = default;
  SavedTensorKeeper(const SavedTensorKeeper&) = delete;
  SavedTensorKeeper& operator=(const SavedTensorKeeper&) = delete;

  /// What keeps the next tensor; null where it is none of this one's matter.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> next() = 0;
};

/// Within it the keeper is asked in this thread, before those of the scopes around it.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorKeeper& keeper);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;
};

/// To be called once before the first scope, by the placement `policy`. Throws Error(usage) where
/// LibTorch's engine has been replaced already.
void install_saved_tensor_hooks(std::string_view policy);

/// A tensor that a keeper was given.
class SavedTensor {
 public:
  explicit SavedTensor(const at::Tensor& given);

  /// Throws Error(usage) where the tensor that was given has been written to since: what backward
  /// computes from it would be wrong, and LibTorch looks at this only where it keeps the tensor.
  void require_unchanged() const;

  /// The tensor, on the device that it came from. Throws as above.
  [[nodiscard]] at::Tensor give_back() const;

  at::Tensor tensor;  ///< without its graph, whose nodes hold on to the keeper; may be replaced

 private:
  c10::Device home_;
  std::vector<int64_t> sizes_;
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
  uint32_t version_ = 0;
};

}  // namespace accel::detail
