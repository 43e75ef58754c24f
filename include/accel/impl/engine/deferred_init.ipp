// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The only file that knows the dispatch key DeferredInit, which LibTorch keeps for libraries such as
// this: while it is on, this file is asked before every operation of the thread.
#include <accel/engine/deferred_init.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/meta_kernels.hpp>
#include <accel/engine/operator_tape.hpp>
#include <accel/engine/sharded/flat_storage.hpp>

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace accel::detail {

struct InitRecipe::Parts {
  OperatorTape tape{Draws::in_a_row};
  struct Made {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    uint32_t version = 0;  ///< as construction left it
  };
  std::unordered_map<const c10::TensorImpl*, Made> made;
  bool has_other_random_state = false;
};

InitRecipe::InitRecipe() : parts_(std::make_unique<Parts>()) {}
InitRecipe::~InitRecipe() = default;

namespace {

constexpr auto init_key = c10::DispatchKey::DeferredInit;

/// The recipe that this thread is writing.
thread_local std::shared_ptr<InitRecipe> written_recipe;

/// Its address tells storages of recipes from others.
void let_go_of_recipe(void* recipe) { delete static_cast<std::shared_ptr<InitRecipe>*>(recipe); }

c10::StorageImpl* storage_on_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

/// Has a storage on meta hold on to its recipe, and throw where its memory is read.
void mark(c10::StorageImpl& storage, const std::shared_ptr<InitRecipe>& recipe) {
  if (storage._mutable_data_ptr_no_checks().get_deleter() == &let_go_of_recipe) return;
  storage.set_data_ptr_noswap({nullptr, new std::shared_ptr<InitRecipe>(recipe), &let_go_of_recipe,
                               c10::Device(c10::kMeta)});
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "accel: the memory of a tensor was read that deferred_init has not given any yet; construct "
      "the module without it, or call accel::materialize first");
}

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& value : values)
    for_tensors(
        value, [&](const at::Tensor& tensor, std::optional<size_t>) { tensors.push_back(tensor); });
  return tensors;
}

[[noreturn]] void fail_for_value(const c10::OperatorHandle& operation) {
  fail(ErrorCategory::usage,
       "accel: deferred_init: a constructor needs the value of a tensor that has none yet, in {}; "
       "construct this module without deferred_init",
       operation.operator_name().name);
}

/// Adds an operation that has run; `on_meta` if an argument of it was.
void note(OperatorTape::Operation operation, const std::vector<c10::IValue>& results,
          bool on_meta) {
  auto& parts = written_recipe->parts();
  for (const auto& result : results)
    for_tensors(result, [&](const at::Tensor& tensor, std::optional<size_t>) {
      if (auto* storage = storage_on_meta(tensor)) {
        on_meta = true;
        mark(*storage, written_recipe);
        using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
        parts.made.try_emplace(tensor.unsafeGetTensorImpl(),
                               InitRecipe::Parts::Made{Weak(tensor.getIntrusivePtr())});
      }
    });
  if (on_meta) parts.tape.end(std::move(operation), results);
}

/// Runs an operation of a constructor on meta, and notes it down.
void intercept(const c10::OperatorHandle& operation, c10::DispatchKeySet,
               torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(init_key);
  const auto& arguments = operation.schema().arguments();
  const auto first = stack->size() - arguments.size();
  std::vector<c10::IValue> given(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  bool on_meta = false, has_tensor = false;
  for (const auto& value : given)
    for_tensors(value, [&](const at::Tensor& tensor, std::optional<size_t>) {
      has_tensor = has_tensor || tensor.defined();
      on_meta = on_meta || storage_on_meta(tensor) != nullptr;
    });
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[first + i];
    // What names a device itself is small, as a rule, and may be filled by hand: torch::tensor does.
    if (arguments[i].name() == "device" && (on_meta || (!has_tensor && value.isNone())))
      value = c10::Device(c10::kMeta);
    if (!on_meta || !value.isTensor()) continue;
    const auto& tensor = value.toTensor();
    if (!tensor.defined() || tensor.is_meta() || tensor.dim() == 0) continue;
    if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite())
      fail_for_value(operation);
    value = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  }
  const ReadableScope readable(tensors_of(given));
  auto noted = written_recipe->parts().tape.begin(operation, given);
  const std::vector<c10::IValue> on_meta_only(stack->begin() + static_cast<std::ptrdiff_t>(first),
                                              stack->end());
  try {
    operation.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    if (!on_meta) throw;
    stack->resize(first);
    if (!run_for_shapes(operation, on_meta_only, *stack)) fail_for_value(operation);
  } catch (const c10::Error&) {
    if (on_meta) fail_for_value(operation);
    throw;
  }
  const std::vector<c10::IValue> results(
      stack->end() - static_cast<std::ptrdiff_t>(operation.schema().returns().size()),
      stack->end());
  note(std::move(noted), results, on_meta);
}

void install_interception() {
  static std::once_flag once;
  std::call_once(once, [] {
    try {
      static const auto* registration =
          new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
              init_key, c10::KernelFunction::makeFromBoxedFunction<&intercept>(),
              "accel: deferred construction"));
      static_cast<void>(registration);
    } catch (const c10::Error& error) {
      fail(
          ErrorCategory::usage,
          "accel: the dispatch key {} that deferred_init needs is taken by another library in this "
          "process: {}",
          c10::toString(init_key), error.what_without_backtrace());
    }
  });
}

}  // namespace

ReadableScope::ReadableScope(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors)
    if (auto* storage = storage_on_meta(tensor); storage && throws_on_access(*storage))
      storages_.push_back(tensor.storage());
  for (const auto& storage : storages_) throws_on_access(*storage.unsafeGetStorageImpl()) = false;
}

ReadableScope::~ReadableScope() {
  for (const auto& storage : storages_) throws_on_access(*storage.unsafeGetStorageImpl()) = true;
}

std::shared_ptr<InitRecipe> InitRecipe::of(const at::Tensor& tensor) {
  auto* storage = storage_on_meta(tensor);
  if (!storage) return nullptr;
  const auto& memory = storage->_mutable_data_ptr_no_checks();
  if (memory.get_deleter() != &let_go_of_recipe) return nullptr;
  return *static_cast<std::shared_ptr<InitRecipe>*>(memory.get_context());
}

void InitRecipe::require_unchanged(const std::string& name, const at::Tensor& tensor) const {
  const auto made = parts_->made.find(tensor.unsafeGetTensorImpl());
  if (!parts_->tape.find(tensor) ||
      (made != parts_->made.end() && tensor._version() != made->second.version))
    fail(ErrorCategory::usage,
         "accel: '{}' was written to after deferred_init, when it had no memory; initialise it "
         "inside",
         name);
}

void InitRecipe::run(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                     const Take& take) {
  auto& tape = parts_->tape;
  if (!tape.why_kept().empty())
    fail(
        ErrorCategory::usage,
        "accel: deferred_init cannot run the constructors again: {}; construct this module without "
        "deferred_init",
        tape.why_kept());
  std::vector<TapeReference> wanted;
  for (const auto& each : tensors) wanted.push_back(tape.find(each.second).value());
  const RandomState now(std::vector<c10::Device>{});
  const bool is_untouched =
      !parts_->has_other_random_state && at::equal(now.of_cpu(), tape.random().of_cpu());
  auto last = tape;  // what is closed is of use once only
  last.close(wanted);
  const auto after = last.replay(wanted, take);
  if (is_untouched && after) after->restore();
}

at::Tensor InitRecipe::random_state() const { return parts_->tape.random().of_cpu(); }
void InitRecipe::set_random_state(const at::Tensor& state) {
  parts_->has_other_random_state =
      parts_->has_other_random_state || !at::equal(state, random_state());
  parts_->tape.random().set_of_cpu(state);
}

InitScope::InitScope() : outer_(written_recipe) {
  install_interception();
  if (!outer_) written_recipe = std::make_shared<InitRecipe>();
  included_.emplace(init_key);
}

InitScope::~InitScope() {
  included_.reset();
  if (outer_) return;
  for (auto& [impl, made] : written_recipe->parts().made)
    if (const auto living = made.tensor.lock(); living.defined() && !living->is_inference())
      made.version = living->version_counter().current_version();
  written_recipe.reset();
}

DeferredTensors deferred_tensors(const torch::nn::Module& module) {
  DeferredTensors found;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto recipe = InitRecipe::of(tensor);
    if (!recipe) return;
    recipe->require_unchanged(name, tensor);
    found.emplace_back(name, tensor.detach());
  };
  for (const auto& [name, parameter] : unique_parameters(module)) add(name, parameter);
  for (const auto& buffer : module.named_buffers()) add(buffer.key(), buffer.value());
  return found;
}

namespace {

/// Each recipe once, with the tensors that are of it.
std::vector<std::pair<std::shared_ptr<InitRecipe>, DeferredTensors>> by_recipe(
    const DeferredTensors& tensors) {
  std::vector<std::pair<std::shared_ptr<InitRecipe>, DeferredTensors>> recipes;
  for (const auto& each : tensors) {
    const auto recipe = InitRecipe::of(each.second);
    const auto known =
        std::ranges::find_if(recipes, [&](const auto& entry) { return entry.first == recipe; });
    if (known == recipes.end())
      recipes.push_back({recipe, {each}});
    else
      known->second.push_back(each);
  }
  return recipes;
}

}  // namespace

void run_recipes(const DeferredTensors& tensors,
                 const std::function<void(const std::string&, const at::Tensor&)>& take) {
  for (const auto& each : by_recipe(tensors))
    each.first->run(each.second, [&](size_t number, const at::Tensor& value) {
      take(each.second[number].first, value);
    });
}

void share_random_state(const Communicator& communicator, const DeferredTensors& tensors) {
  if (communicator.size() == 1) return;
  for (const auto& [recipe, own] : by_recipe(tensors)) {
    const auto state = recipe->random_state().clone();
    communicator.broadcast_coalesced_({state}, 0);
    recipe->set_random_state(state);
  }
}

void give_memory(const at::Tensor& tensor, const at::Tensor& holder) {
  if (!tensor.is_meta()) return tensor.set_data(holder);
  // set_data is for tensors of one kind; what hangs on this one (hooks, the gradient's) is none yet.
  const auto requires_grad = tensor.requires_grad();
  tensor.unsafeGetTensorImpl()->shallow_copy_from(holder.getIntrusivePtr());
  tensor.set_requires_grad(requires_grad);
}

}  // namespace accel::detail

namespace accel {

void materialize(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto deferred = detail::deferred_tensors(module);
  std::unordered_map<std::string, at::Tensor> tensors;
  for (const auto& [name, parameter] : unique_parameters(module)) tensors.emplace(name, parameter);
  for (const auto& buffer : module.named_buffers()) tensors.emplace(buffer.key(), buffer.value());
  detail::run_recipes(deferred, [&](const std::string& name, const at::Tensor& value) {
    detail::give_memory(tensors.at(name), value.to(tensors.at(name).scalar_type()));
  });
}

}  // namespace accel
