// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/sharded_assignment.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/sharded/unit_gatherer.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/VariableHooksInterface.h>

#include <mutex>

namespace accel::detail {

namespace {

using at::TensorBase;

/// LibTorch's hooks, with an assignment that knows sharded parameters.
class ShardedAssignment final : public at::impl::VariableHooksInterface {
 public:
  explicit ShardedAssignment(at::impl::VariableHooksInterface& libtorchs) : next_(libtorchs) {}

  void set_data(const TensorBase& tensor, const TensorBase& data) const override {
    // The engine's own gives a plain parameter a tensor with the key, or takes it back.
    auto* storage = FlatStorage::of(at::Tensor(tensor));
    if (!storage || storage->kind() != FlatKind::values ||
        c10::impl::tls_is_dispatch_key_excluded(sharded_key)) {
      next_.set_data(tensor, data);
      return;
    }
    // module.to() of what is there already.
    if (FlatStorage::of(at::Tensor(data)) == storage &&
        data.storage_offset() == tensor.storage_offset())
      return;
    auto* parameter = storage->unit().parameter_of(at::Tensor(tensor));
    if (!parameter || data.sizes() != tensor.sizes() ||
        data.scalar_type() != tensor.scalar_type() || data.device() != tensor.device())
      fail(ErrorCategory::usage,
           "accel: the sharded parameter '{}' {} of shape {} on {} cannot become {} of shape {} on "
           "{}; change dtype, device and shape before prepare",
           parameter ? parameter->name : "?", c10::toString(tensor.scalar_type()),
           c10::str(tensor.sizes()), tensor.device().str(), c10::toString(data.scalar_type()),
           c10::str(data.sizes()), data.device().str());
    storage->unit().gatherer->assign(*parameter, storage->unit(), at::Tensor(data));
  }

  TensorBase tensor_data(const TensorBase& tensor) const override {
    return next_.tensor_data(tensor);
  }
  TensorBase variable_data(const TensorBase& tensor) const override {
    return next_.variable_data(tensor);
  }
  const std::shared_ptr<torch::autograd::Node>& grad_fn(const TensorBase& tensor) const override {
    return next_.grad_fn(tensor);
  }
  unsigned _register_hook(const TensorBase& tensor,
                          std::function<TensorBase(const TensorBase&)> hook) const override {
    return next_._register_hook(tensor, std::move(hook));
  }
  void remove_hook(const TensorBase& tensor, unsigned position) const override {
    next_.remove_hook(tensor, position);
  }
  bool is_view(const TensorBase& tensor) const override { return next_.is_view(tensor); }
  const TensorBase& base(const TensorBase& tensor) const override { return next_.base(tensor); }
  const std::string& name(const TensorBase& tensor) const override { return next_.name(tensor); }
  bool is_leaf(const TensorBase& tensor) const override { return next_.is_leaf(tensor); }
  int64_t output_nr(const TensorBase& tensor) const override { return next_.output_nr(tensor); }
  TensorBase data(const TensorBase& tensor) const override { return next_.data(tensor); }
  int64_t _version(const TensorBase& tensor) const override { return next_._version(tensor); }
  void retain_grad(const TensorBase& tensor) const override { next_.retain_grad(tensor); }
  bool retains_grad(const TensorBase& tensor) const override { return next_.retains_grad(tensor); }
  void _backward(const at::Tensor& tensor, at::TensorList inputs,
                 const std::optional<at::Tensor>& gradient, std::optional<bool> retain_graph,
                 bool create_graph) const override {
    next_._backward(tensor, inputs, gradient, retain_graph, create_graph);
  }
  void requires_grad_(const TensorBase& tensor, bool requires_grad) const override {
    next_.requires_grad_(tensor, requires_grad);
  }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& operation,
                                               c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override {
    next_.basic_autograd_not_implemented_fallback(operation, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const TensorBase& tensor) const override {
    return next_.grad_dtype(tensor);
  }
  void set_grad_dtype(const TensorBase& tensor,
                      const std::optional<c10::ScalarType>& type) const override {
    next_.set_grad_dtype(tensor, type);
  }

 private:
  at::impl::VariableHooksInterface& next_;
};

}  // namespace

void install_sharded_assignment() {
  static std::once_flag once;
  std::call_once(once, [] {
    // For the life of the process, as LibTorch's own.
    static auto* const hooks = new ShardedAssignment(*at::impl::GetVariableHooks());
    at::impl::SetVariableHooks(hooks);
  });
}

}  // namespace accel::detail
