// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads one batch: samples from the dataset, a batch from the collation, and an error that says
// which samples it was. Comes after dataset.hpp and collate.hpp; loader_epoch.hpp calls it, on
// several threads if asked to.
#pragma once

#include <accel/data/collate.hpp>
#include <accel/data/dataset.hpp>
#include <accel/detail/nested.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace accel {

/// A function that makes a batch of what the dataset gives: by value, the std::vector of samples
/// (or the batch, if the dataset makes batches). It is copied for each epoch and each thread.
template <class Collate, class Dataset>
concept CollateFor =
    (std::copy_constructible<Collate> && std::invocable<Collate&, detail::SamplesOf<Dataset>>) ||
    detail::unmet<"accel: a collate function of a dataset needs to take a std::vector of samples; "
                  "use a copyable function object, or leave it out",
                  Collate, Dataset>;

namespace detail {

/// To be called while an exception is handled: throws Error that names the samples, with that
/// exception nested in it.
[[noreturn]] void rethrow_naming_samples(c10::ArrayRef<std::size_t> indices);

/// `tensor` on `device`; itself if it is there, or undefined.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device, bool non_blocking);

/// `tensor` in pinned memory, from where copies to a CUDA device need not wait; itself if it is not
/// on the CPU.
at::Tensor to_pinned_memory(const at::Tensor& tensor);

/// Replaces the tensors in a batch, whatever its structure.
template <class Batch, class Transform>
void transform_tensors(Batch& batch, const Transform& transform) {
  if constexpr (can_hold<at::Tensor, Batch>::value)
    for_each_leaf<at::Tensor>(batch, [&](at::Tensor& tensor) { tensor = transform(tensor); });
}

template <MapDataset Dataset, CollateFor<Dataset> Collate>
class BatchReader {
 public:
  using Batch = std::remove_cvref_t<std::invoke_result_t<Collate&, SamplesOf<Dataset>>>;

  BatchReader(std::shared_ptr<Dataset> dataset, Collate collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {}

  /// Whether other threads can have a reader of their own.
  static constexpr bool can_be_cloned = ReadsConst<Dataset> || std::copy_constructible<Dataset>;

  /// A reader for another thread. It shares a dataset that is not changed by reading, and copies
  /// one that may be.
  [[nodiscard]] BatchReader clone() const
    requires can_be_cloned
  {
    if constexpr (ReadsConst<Dataset>) {
      return *this;
    } else {
      return BatchReader(std::make_shared<Dataset>(*dataset_), collate_);
    }
  }

  [[nodiscard]] Batch read(c10::ArrayRef<std::size_t> indices) {
    try {
      return std::invoke(collate_, read_samples(*dataset_, indices));
    } catch (...) {
      rethrow_naming_samples(indices);
    }
  }

  [[nodiscard]] const std::shared_ptr<Dataset>& dataset() const noexcept { return dataset_; }

 private:
  std::shared_ptr<Dataset> dataset_;
  Collate collate_;
};

}  // namespace detail
}  // namespace accel
