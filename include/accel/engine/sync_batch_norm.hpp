// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Batch normalization over the batches of all ranks, for modules that know nothing of it: while a
// scope lives, `batch_norm` of this thread computes its statistics together with the other ranks.
// prepared_model.hpp opens one around each forward where `ddp.sync_batch_norm` asks for it. Comes
// after comm/communicator.hpp.
#pragma once

#include <accel/comm/communicator.hpp>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace accel {

/// In a scope, batch normalization in training takes mean and variance over all ranks' rows, in
/// fp32 or wider, and so do its gradient and its running statistics: the numbers of one process
/// with the whole batch. Rows may differ in number over the ranks; a rank may have none. In
/// evaluation, and with one process, nothing changes; instance normalization, which is the same
/// operator below, stays each sample's. Every rank must run the same forward, and backward where the
/// results have gradients: each normalization communicates once in both. Gradients of its gradient
/// are not supported.
///
/// `training` is the module's: a layer without running statistics calls the operator in evaluation as
/// it does in training.
class SyncBatchNormScope {
 public:
  SyncBatchNormScope(const Communicator& communicator, bool training);
  ~SyncBatchNormScope();
  SyncBatchNormScope(const SyncBatchNormScope&) = delete;
  SyncBatchNormScope& operator=(const SyncBatchNormScope&) = delete;

 private:
  const Communicator* outer_;
  bool outer_training_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_;
};

}  // namespace accel
