// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/meta_kernels.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <mutex>

namespace accel::detail {

namespace {

at::Tensor like_on(const at::Tensor& tensor, c10::DeviceType device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
}

void run_on_meta(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  std::vector<c10::IValue> arguments(
      stack->end() - static_cast<std::ptrdiff_t>(operation.schema().arguments().size()),
      stack->end());
  stack->resize(stack->size() - arguments.size());
  if (!run_for_shapes(operation, std::move(arguments), *stack))
    fail(ErrorCategory::usage,
         "accel: {} does not run on meta, and what it returns does not tell by shapes alone; "
         "measure the memory of a step instead",
         operation.operator_name().name);
}

/// Whether LibTorch has it for the CPU and not for meta.
bool lacks_meta(const c10::OperatorHandle& operation) {
  using Key = c10::DispatchKey;
  // These call, on a device that they do not know, what is there to be overridden and throws.
  const auto& name = operation.operator_name().name;
  if (name == "aten::convolution" || name == "aten::convolution_backward") return true;
  return operation.hasSchema() && operation.hasKernelForDispatchKey(Key::CPU) &&
         std::ranges::none_of(
             std::array{Key::Meta, Key::CompositeImplicitAutograd, Key::CompositeExplicitAutograd,
                        Key::CompositeExplicitAutogradNonFunctional},
             [&](Key key) { return operation.hasKernelForDispatchKey(key); });
}

}  // namespace

bool run_for_shapes(const c10::OperatorHandle& operation, std::vector<c10::IValue> arguments,
                    torch::jit::Stack& stack) {
  const bool gives_tensors =
      std::ranges::all_of(operation.schema().returns(), [](const auto& result) {
        return result.type()->isSubtypeOf(*c10::TensorType::get()) && !result.alias_info();
      });
  const bool takes_lists = std::ranges::any_of(arguments, [](const auto& argument) {
    return argument.isTensorList() || argument.isOptionalTensorList();
  });
  // Of zeros these would give other shapes than of what they are going to be given.
  const bool shows_values = operation.hasTag(at::Tag::dynamic_output_shape) ||
                            operation.hasTag(at::Tag::data_dependent_output);
  if (!gives_tensors || takes_lists || shows_values) return false;
  for (auto& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(c10::kCPU);
    if (argument.isTensor() && argument.toTensor().defined())
      argument = like_on(argument.toTensor(), c10::kCPU).zero_();
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  operation.callBoxed(arguments);
  for (const auto& result : arguments) {
    const auto& tensor = result.toTensor();
    stack.emplace_back(tensor.defined() ? like_on(tensor, c10::kMeta) : tensor);
  }
  return true;
}

void install_meta_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    static auto* const kept = new std::vector<c10::RegistrationHandleRAII>;
    for (const auto& name : dispatcher.getAllOpNames())
      if (const auto operation = dispatcher.findOp(name); operation && lacks_meta(*operation))
        kept->push_back(dispatcher.registerImpl(
            name, c10::DispatchKey::Meta,
            c10::KernelFunction::makeFromBoxedFunction<&run_on_meta>(), std::nullopt, nullptr,
            "accel: shapes of operations without a meta kernel"));
  });
}

}  // namespace accel::detail
