// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/offloaded_activations.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/sharded/flat_storage.hpp>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace accel::detail {

namespace {

/// Less is not worth a page of its own.
constexpr std::size_t least_bytes = 64 << 10;

std::size_t in_pages(std::size_t bytes) {
  constexpr std::size_t page = 4096;
  return (bytes + page - 1) / page * page;
}

}  // namespace

/// Memory of files that is used again: a training asks for the same sizes in every step.
struct OffloadedActivations::Pool : std::enable_shared_from_this<Pool> {
  explicit Pool(std::shared_ptr<OffloadFile> given) : file(std::move(given)) {}

  /// Memory that is lent to one tensor.
  struct Lease {
    std::shared_ptr<Pool> pool;
    c10::DataPtr memory;
    std::size_t bytes, capacity;
    bool is_of_file;
  };

  /// Where a copy of a tensor is to lie, counted until it goes.
  [[nodiscard]] at::Tensor room_for(const at::Tensor& tensor) {
    const auto bytes = in_pages(tensor.nbytes());
    auto lease =
        std::make_unique<Lease>(Lease{shared_from_this(), {}, bytes, bytes, tensor.is_cpu()});
    if (lease->is_of_file)
      std::tie(lease->capacity, lease->memory) = take(bytes);
    else
      lease->memory = at::globalContext().getPinnedMemoryAllocator()->allocate(bytes);
    note(static_cast<int64_t>(bytes));
    void* data = lease->memory.get();
    const auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes,
        c10::DataPtr(data, lease.release(), &end, c10::Device(c10::kCPU)), nullptr, false);
    const auto host = tensor.options().device(at::kCPU).requires_grad(false);
    return at::empty({0}, host).set_(c10::Storage(storage), 0, tensor.sizes(), tensor.strides());
  }

  [[nodiscard]] OffloadReport report() {
    const std::scoped_lock lock(mutex);
    return counts;
  }

  void keep_failure(std::exception_ptr why) {
    const std::scoped_lock lock(mutex);
    if (!failure) failure = std::move(why);
  }
  [[nodiscard]] std::exception_ptr take_failure() {
    const std::scoped_lock lock(mutex);
    return std::exchange(failure, nullptr);
  }

  const std::shared_ptr<OffloadFile> file;

 private:
  static void end(void* context) {
    const std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
    if (lease->is_of_file) drop_pages(lease->memory.get(), lease->bytes);
    const std::scoped_lock lock(lease->pool->mutex);
    lease->pool->counts.waiting -= static_cast<int64_t>(lease->bytes);
    if (lease->is_of_file) lease->pool->idle.emplace(lease->capacity, std::move(lease->memory));
  }

  std::pair<std::size_t, c10::DataPtr> take(std::size_t bytes) {
    {
      const std::scoped_lock lock(mutex);
      // Not one that is much larger, whose rest would lie idle.
      const auto found = idle.lower_bound(bytes);
      if (found != idle.end() && found->first <= bytes + bytes / 8) {
        auto node = idle.extract(found);
        return {node.key(), std::move(node.mapped())};
      }
    }
    try {
      return {bytes, file->allocate(bytes)};
    } catch (const Error&) {
      if (!forget_idle()) throw;
      return {bytes, file->allocate(bytes)};
    }
  }

  bool forget_idle() {
    const std::scoped_lock lock(mutex);
    const bool had_some = !idle.empty();
    idle.clear();
    return had_some;
  }

  void note(int64_t bytes) {
    const std::scoped_lock lock(mutex);
    counts.moved += bytes;
    counts.waiting += bytes;
    counts.most_waiting = std::max(counts.most_waiting, counts.waiting);
  }

  std::mutex mutex;
  std::multimap<std::size_t, c10::DataPtr> idle;  ///< by capacity
  OffloadReport counts;
  std::exception_ptr failure;
};

namespace {

thread_local OffloadedActivations::Scope* innermost_scope = nullptr;

/// What a node of the graph keeps in the place of a tensor.
class KeptElsewhere : public torch::autograd::SavedVariableHooks {
 public:
  explicit KeptElsewhere(OffloadedActivations::Scope& scope) : scope_(&scope) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    // The scope is open still: LibTorch packs as soon as it has asked.
    auto moved = std::exchange(scope_, nullptr)->moved(tensor);
    saved_.emplace(tensor);
    if (!moved.is_same(tensor)) saved_->tensor = std::move(moved);
  }
  at::Tensor call_unpack_hook() override { return saved_.value().give_back(); }

 private:
  OffloadedActivations::Scope* scope_;
  std::optional<SavedTensor> saved_;
};

}  // namespace

/// A tensor that was moved in this forward. What is held of it keeps others from its address, and
/// nothing alive.
struct OffloadedActivations::Scope::Known {
  /// The bytes that it has.
  struct Memory {
    const c10::StorageImpl* storage;
    int64_t offset, numel, version;
    c10::ScalarType type;
    std::optional<c10::Stream> stream;  ///< that a copy is made on
    bool operator==(const Memory&) const = default;
  };
  Memory memory;
  c10::weak_intrusive_ptr<c10::StorageImpl> address;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> copy;
};

OffloadedActivations::OffloadedActivations(std::shared_ptr<OffloadFile> file)
    : pool_(std::make_shared<Pool>(std::move(file))) {
  install_saved_tensor_hooks("offload<activations>");
}
OffloadedActivations::~OffloadedActivations() = default;

OffloadReport OffloadedActivations::report() const { return pool_->report(); }

OffloadedActivations::Scope::Scope(const std::shared_ptr<OffloadedActivations>& place,
                                   const torch::nn::Module& model)
    : place_(place) {
  if (innermost_scope && innermost_scope->place_ == place_) {
    innermost_scope->leave_alone(model);
    return;
  }
  if (const auto failure = place_->pool_->take_failure()) std::rethrow_exception(failure);
  for (const auto* around = innermost_scope; around; around = around->outer_)
    if (around->place_ == place_) models_.insert(around->models_.begin(), around->models_.end());
  leave_alone(model);
  asked_.emplace(*this);
  outer_ = std::exchange(innermost_scope, this);
}
OffloadedActivations::Scope::~Scope() {
  if (asked_) innermost_scope = outer_;
}

OffloadedActivations::Scope* OffloadedActivations::Scope::innermost() noexcept {
  return innermost_scope;
}

void OffloadedActivations::Scope::leave_alone(const torch::nn::Module& model) {
  for (const auto& tensors : {model.parameters(), model.buffers()})
    for (const auto& tensor : tensors)
      if (tensor.defined() && tensor.has_storage())
        models_.insert(tensor.storage().unsafeGetStorageImpl());
}

std::unique_ptr<torch::autograd::SavedVariableHooks> OffloadedActivations::Scope::next() {
  // What a backward computes again is asked for at once.
  if (torch::autograd::get_current_graph_task_id() != -1) return nullptr;
  return std::make_unique<KeptElsewhere>(*this);
}

at::Tensor OffloadedActivations::Scope::moved_or_kept(const at::Tensor& tensor) noexcept {
  try {
    return moved(tensor);
  } catch (const std::exception&) {
    place_->pool_->keep_failure(std::current_exception());
    return tensor;
  }
}

at::Tensor OffloadedActivations::Scope::moved(const at::Tensor& tensor) {
  auto& pool = *place_->pool_;
  if (!tensor.defined() || !(tensor.is_cuda() || (tensor.is_cpu() && pool.file))) return tensor;
  if (tensor.layout() != at::kStrided || tensor.nbytes() < least_bytes ||
      !tensor.is_non_overlapping_and_dense() || tensor.is_inference() || tensor.is_conj() ||
      tensor.is_neg())
    return tensor;
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (FlatStorage::of(tensor) || models_.contains(storage)) return tensor;
  std::optional<c10::Stream> stream;
  if (tensor.is_cuda()) stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(tensor.device());
  const Known::Memory memory{storage,           tensor.storage_offset(), tensor.numel(),
                             tensor._version(), tensor.scalar_type(),    stream};
  const at::NoGradGuard no_grad;
  for (const auto& known : known_)
    if (known.memory == memory)
      if (const at::Tensor copy(known.copy.lock()); copy.defined())
        return copy.as_strided(tensor.sizes(), tensor.strides(), 0);
  auto copy = pool.room_for(tensor);
  copy.copy_(tensor.detach(), /*non_blocking=*/true);
  if (tensor.is_cpu()) drop_pages(copy.const_data_ptr(), tensor.nbytes());
  known_.push_back({memory, decltype(Known::address)(tensor.storage().getWeakStorageImpl()),
                    decltype(Known::copy)(copy.getIntrusivePtr())});
  return copy;
}

}  // namespace accel::detail
