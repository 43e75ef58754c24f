// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// offload<activations>: what autograd saves in a forward waits elsewhere until backward asks for it:
// beside a GPU in host memory, on the CPU in files (offload_file.hpp). prepared_model.hpp opens a
// scope around each forward; what units of recomputed<...> were given waits there too.
#pragma once

#include <accel/engine/offload_file.hpp>
#include <accel/engine/saved_tensors.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

namespace accel {

/// What offload<activations> has moved, in bytes.
struct OffloadReport {
  int64_t moved = 0;         ///< so far
  int64_t waiting = 0;       ///< now
  int64_t most_waiting = 0;  ///< at any time
};

namespace detail {

/// The place of one accelerator's activations.
class OffloadedActivations {
 public:
  /// `file` is where what is on the CPU goes; null: it stays.
  explicit OffloadedActivations(std::shared_ptr<OffloadFile> file);
  ~OffloadedActivations();
  OffloadedActivations(const OffloadedActivations&) = delete;
  OffloadedActivations& operator=(const OffloadedActivations&) = delete;

  [[nodiscard]] OffloadReport report() const;

  /// A forward of a model in this thread. Inside another one of the same place it is a part of that.
  class Scope : public SavedTensorKeeper {
   public:
    /// Throws what a `moved_or_kept` of an earlier forward could not.
    Scope(const std::shared_ptr<OffloadedActivations>& place, const torch::nn::Module& model);
    ~Scope() override;

    /// That of this thread; null outside of one.
    [[nodiscard]] static Scope* innermost() noexcept;

    /// A copy of a tensor where it waits, the same one for tensors that are the same; or the tensor
    /// itself, where it stays: what is small, a model's own, or not dense. Throws Error(config) where
    /// a disk is full.
    [[nodiscard]] at::Tensor moved(const at::Tensor& tensor);
    /// The same where nothing may be thrown: then it stays, and the next forward says why.
    [[nodiscard]] at::Tensor moved_or_kept(const at::Tensor& tensor) noexcept;

    std::unique_ptr<torch::autograd::SavedVariableHooks> next() override;

   private:
    struct Known;
    void leave_alone(const torch::nn::Module& model);

    std::shared_ptr<OffloadedActivations> place_;
    Scope* outer_ = nullptr;
    std::unordered_set<const c10::StorageImpl*> models_;  ///< memory of parameters and buffers
    std::vector<Known> known_;
    std::optional<SavedTensorScope> asked_;
  };

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace detail
}  // namespace accel
