// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The only file that changes the allocator of meta, which gives out no memory: ours notes down how
// much it would have been.
#include <accel/engine/activation_memory.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/deferred_init.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/meta_kernels.hpp>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace accel {

namespace detail {
namespace {

/// What lives on meta of what a thread has made since it began to count.
struct Count {
  std::vector<at::Tensor> parameters;
  int64_t living = 0, peak = 0;

  /// Gradients of parameters are counted with the model.
  void note_peak() {
    int64_t gradients = 0;
    for (const auto& parameter : parameters)
      if (const auto& gradient = parameter.grad();
          gradient.defined() && gradient.layout() == at::kStrided)
        gradients += static_cast<int64_t>(gradient.nbytes());
    peak = std::max(peak, living - gradients);
  }
};
// By shared pointer, since a tensor may outlive the count.
thread_local std::shared_ptr<Count> current_count;

struct Share {
  std::shared_ptr<Count> count;
  int64_t bytes;
};

void let_go_of_share(void* context) {
  const std::unique_ptr<Share> share(static_cast<Share*>(context));
  share->count->living -= share->bytes;
}

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& other) : other_(other) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (!current_count || bytes == 0) return other_.allocate(bytes);
    auto share = std::make_unique<Share>(current_count, static_cast<int64_t>(bytes));
    current_count->living += share->bytes;
    current_count->note_peak();
    return {nullptr, share.release(), &let_go_of_share, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return other_.raw_deleter(); }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  c10::Allocator& other_;
};

void install_counting_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* const allocator = new CountingAllocator(*c10::GetAllocator(c10::kMeta));
    c10::SetAllocator(c10::kMeta, allocator);
    if (c10::GetAllocator(c10::kMeta) != allocator)
      fail(ErrorCategory::usage,
           "accel: activation_memory needs the allocator of meta, and another library of this "
           "process has taken its place; measure the memory of a step instead");
  });
}

/// Counts what this thread makes. Gradients that parameters have are put aside meanwhile.
class CountScope {
 public:
  explicit CountScope(const std::vector<at::Tensor>& parameters)
      : count(std::make_shared<Count>()) {
    install_counting_allocator();
    for (const auto& parameter : parameters)
      gradients_.push_back(std::exchange(parameter.mutable_grad(), {}));
    count->parameters = parameters;
    outer_ = std::exchange(current_count, count);
  }
  ~CountScope() {
    current_count = outer_;
    for (size_t i = 0; i < gradients_.size(); ++i)
      count->parameters[i].mutable_grad() = std::move(gradients_[i]);
    count->parameters.clear();
  }
  CountScope(const CountScope&) = delete;
  CountScope& operator=(const CountScope&) = delete;

  std::shared_ptr<Count> count;

 private:
  std::shared_ptr<Count> outer_;
  std::vector<at::Tensor> gradients_;
};

/// Gives running statistics back the versions that they had: a recipe holds on to them.
class VersionScope {
 public:
  explicit VersionScope(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
    for (const auto& buffer : buffers_) versions_.push_back(buffer._version());
  }
  ~VersionScope() {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      auto shared = buffers_[i].unsafeGetTensorImpl()->version_counter();
      shared.set_version(versions_[i]);
    }
  }
  VersionScope(const VersionScope&) = delete;
  VersionScope& operator=(const VersionScope&) = delete;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<int64_t> versions_;
};

}  // namespace
}  // namespace detail

ActivationMemory activation_memory(const torch::nn::Module& module,
                                   const std::function<at::Tensor()>& loss) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : unique_parameters(module)) {
    if (!parameter.is_meta())
      detail::fail(ErrorCategory::usage,
                   "accel: activation_memory runs on meta, and the parameter '{}' is on {}; "
                   "construct the module inside accel::deferred_init",
                   name, parameter.device().str());
    parameters.push_back(parameter);
  }
  auto buffers = module.buffers();
  std::erase_if(buffers, [](const at::Tensor& buffer) { return !buffer.is_meta(); });
  auto all = parameters;
  all.insert(all.end(), buffers.begin(), buffers.end());
  const detail::ReadableScope readable(all);
  const detail::VersionScope versions(std::move(buffers));
  detail::install_meta_kernels();
  const detail::CountScope scope(parameters);

  const at::AutoGradMode gradients(true);
  auto result = loss();
  if (!result.defined() || result.numel() != 1 || !result.requires_grad())
    detail::fail(ErrorCategory::usage,
                 "accel: activation_memory needs a scalar loss that has a graph, and was given {}",
                 result.defined() ? c10::str("a tensor of sizes ", result.sizes()) : "none");
  const auto kept = scope.count->living;
  result.backward();
  return {kept, scope.count->peak};
}

}  // namespace accel
