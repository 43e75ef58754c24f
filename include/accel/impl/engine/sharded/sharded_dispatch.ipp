// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/sharded_dispatch.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/sharded/unit_gatherer.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace accel::detail {

namespace {

using torch::jit::Stack;

/// What an operation does to the memory of its arguments.
enum class Access : unsigned char {
  data,      ///< reads or writes it: the default
  metadata,  ///< looks at sizes or makes a view
  autograd,  ///< is autograd's own, and may run others inside, which must come here
  copy,      ///< writes a whole tensor with another
  replace,   ///< gives it other memory
  reshape,   ///< another size, or other strides in place
};

// Sorted. Operations that are made of others (reshape, contiguous, to) may copy, so they are no views.
constexpr std::array metadata_only{
    std::string_view("aten::_has_compatible_shallow_copy_type"),
    std::string_view("aten::_reshape_alias"),
    std::string_view("aten::adjoint"),
    std::string_view("aten::alias"),
    std::string_view("aten::as_strided"),
    std::string_view("aten::broadcast_to"),
    std::string_view("aten::chunk"),
    std::string_view("aten::detach"),
    std::string_view("aten::detach_"),
    std::string_view("aten::diagonal"),
    std::string_view("aten::empty_like"),
    std::string_view("aten::expand"),
    std::string_view("aten::expand_as"),
    std::string_view("aten::full_like"),
    std::string_view("aten::is_complex"),
    std::string_view("aten::is_conj"),
    std::string_view("aten::is_floating_point"),
    std::string_view("aten::is_inference"),
    std::string_view("aten::is_neg"),
    std::string_view("aten::is_same_size"),
    std::string_view("aten::is_signed"),
    std::string_view("aten::mH"),
    std::string_view("aten::mT"),
    std::string_view("aten::moveaxis"),
    std::string_view("aten::movedim"),
    std::string_view("aten::narrow"),
    std::string_view("aten::new_empty"),
    std::string_view("aten::new_empty_strided"),
    std::string_view("aten::new_full"),
    std::string_view("aten::new_ones"),
    std::string_view("aten::new_zeros"),
    std::string_view("aten::numpy_T"),
    std::string_view("aten::ones_like"),
    std::string_view("aten::permute"),
    std::string_view("aten::rand_like"),
    std::string_view("aten::randint_like"),
    std::string_view("aten::randn_like"),
    std::string_view("aten::result_type"),
    std::string_view("aten::select"),
    std::string_view("aten::size"),
    std::string_view("aten::slice"),
    std::string_view("aten::split"),
    std::string_view("aten::split_with_sizes"),
    std::string_view("aten::squeeze"),
    std::string_view("aten::storage_offset"),
    std::string_view("aten::stride"),
    std::string_view("aten::swapaxes"),
    std::string_view("aten::swapdims"),
    std::string_view("aten::sym_numel"),
    std::string_view("aten::sym_size"),
    std::string_view("aten::sym_storage_offset"),
    std::string_view("aten::sym_stride"),
    std::string_view("aten::t"),
    std::string_view("aten::tensor_split"),
    std::string_view("aten::transpose"),
    std::string_view("aten::unbind"),
    std::string_view("aten::unflatten"),
    std::string_view("aten::unfold"),
    std::string_view("aten::unsqueeze"),
    std::string_view("aten::view"),
    std::string_view("aten::view_as"),
    std::string_view("aten::view_as_real"),
    std::string_view("aten::zeros_like"),
};
static_assert(std::ranges::is_sorted(metadata_only));

constexpr std::array autograds_own{
    std::string_view("aten::_backward"),      std::string_view("aten::_fw_primal"),
    std::string_view("aten::_version"),       std::string_view("aten::data"),
    std::string_view("aten::is_leaf"),        std::string_view("aten::output_nr"),
    std::string_view("aten::requires_grad_"), std::string_view("aten::retain_grad"),
    std::string_view("aten::set_data"),
};
static_assert(std::ranges::is_sorted(autograds_own));

constexpr std::array reshaping{
    std::string_view("aten::as_strided_"), std::string_view("aten::resize_"),
    std::string_view("aten::resize_as_"),  std::string_view("aten::squeeze_"),
    std::string_view("aten::swapaxes_"),   std::string_view("aten::swapdims_"),
    std::string_view("aten::t_"),          std::string_view("aten::transpose_"),
    std::string_view("aten::unsqueeze_"),
};
static_assert(std::ranges::is_sorted(reshaping));

Access classify(std::string_view name) {
  if (std::ranges::binary_search(metadata_only, name)) return Access::metadata;
  if (std::ranges::binary_search(autograds_own, name)) return Access::autograd;
  if (name == "aten::copy_") return Access::copy;
  if (name == "aten::set_") return Access::replace;
  if (std::ranges::binary_search(reshaping, name)) return Access::reshape;
  return Access::data;
}

Access access_of(const c10::OperatorHandle& operation) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Access> known;
  const auto* schema = &operation.schema();
  const auto place = known.find(schema);
  if (place != known.end()) return place->second;
  return known.emplace(schema, classify(schema->name())).first->second;
}

/// The engine's storages among an operation's arguments.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& operation, const Stack& stack) {
    const auto& arguments = operation.schema().arguments();
    const size_t first = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto& value = stack[first + i];
      const auto* alias = arguments[i].alias_info();
      const bool is_written = alias && alias->isWrite();
      if (value.isTensor()) {
        take(value.toTensor(), is_written);
      } else if (value.isTensorList() || value.isList()) {
        for (const c10::IValue& entry : value.toListRef())
          if (entry.isTensor()) take(entry.toTensor(), is_written);
      }
    }
  }

  /// What is read or written, each once.
  [[nodiscard]] c10::ArrayRef<FlatStorage*> storages() const { return storages_; }
  [[nodiscard]] const auto& written() const { return written_; }

 private:
  void take(const at::Tensor& tensor, bool is_written) {
    auto* storage = FlatStorage::of(tensor);
    if (!storage) return;
    if (std::ranges::find(storages_, storage) == storages_.end()) storages_.push_back(storage);
    if (is_written) written_.emplace_back(storage, tensor);
  }

  c10::SmallVector<FlatStorage*, 4> storages_;
  c10::SmallVector<std::pair<FlatStorage*, at::Tensor>, 2> written_;
};

/// The operations of one gatherer's storages.
void touch(c10::ArrayRef<FlatStorage*> storages) {
  if (storages.size() == 1) {
    storages[0]->unit().gatherer->touch(storages);
    return;
  }
  // Seldom several models in one operation; each gets its own.
  c10::SmallVector<UnitGatherer*, 2> gatherers;
  for (auto* storage : storages)
    if (std::ranges::find(gatherers, storage->unit().gatherer) == gatherers.end())
      gatherers.push_back(storage->unit().gatherer);
  for (auto* gatherer : gatherers) {
    c10::SmallVector<FlatStorage*, 4> own;
    for (auto* storage : storages)
      if (storage->unit().gatherer == gatherer) own.push_back(storage);
    gatherer->touch(own);
  }
}

/// Replaces or fills a whole parameter without gathering it. False where it has to be done the long
/// way.
bool assigned(const c10::OperatorHandle& operation, Access access, Stack& stack) {
  const auto count = operation.schema().arguments().size();
  const auto first = stack.size() - count;
  const auto self = stack[first].toTensor();
  auto* storage = FlatStorage::of(self);
  if (!storage || storage->kind() != FlatKind::values) return false;
  auto* parameter = storage->unit().parameter_of(self);
  const auto source =
      count > 1 && stack[first + 1].isTensor() ? stack[first + 1].toTensor() : at::Tensor();
  const bool fits = parameter && source.defined() && source.sizes() == self.sizes();
  if (access == Access::copy) {
    if (!fits || at::GradMode::is_enabled() || FlatStorage::of(source)) return false;
  } else if (!fits || source.scalar_type() != self.scalar_type() ||
             source.device() != self.device()) {
    fail(
        ErrorCategory::usage,
        "accel: the sharded parameter '{}' {} of shape {} cannot be given other memory, of another "
        "shape, dtype or device; change the module before prepare",
        parameter ? parameter->name : "?", c10::toString(self.scalar_type()),
        c10::str(self.sizes()));
  }
  storage->unit().gatherer->assign(*parameter, storage->unit(), source);
  torch::jit::drop(stack, count);
  stack.emplace_back(self);
  return true;
}

void on_sharded(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, Stack* stack) {
  const auto access = access_of(operation);
  if (access == Access::autograd) {
    const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, sharded_key);
    operation.redispatchBoxed(keys & below, stack);
    return;
  }
  if (access == Access::metadata) {
    const c10::impl::ExcludeDispatchKeyGuard excluded(sharded_key);
    operation.callBoxed(stack);
    return;
  }
  const bool assigns = access == Access::copy || access == Access::replace;
  if (assigns && assigned(operation, access, *stack)) return;
  const Arguments arguments(operation, *stack);
  const bool replaces_other = access == Access::replace && !arguments.written().empty();
  if (replaces_other || (access == Access::reshape && !arguments.written().empty()))
    fail(ErrorCategory::usage,
         "accel: a sharded parameter or gradient cannot be resized or reshaped in place; "
         "change the module before prepare");
  if (!arguments.storages().empty()) touch(arguments.storages());
  {
    const c10::impl::ExcludeDispatchKeyGuard excluded(sharded_key);
    operation.callBoxed(stack);
  }
  for (const auto& [storage, tensor] : arguments.written())
    storage->unit().gatherer->written(*storage, tensor);
}

}  // namespace

void install_sharded_dispatch() {
  static std::once_flag once;
  std::call_once(once, [] {
    try {
      // Kept for the life of the process: tensors with the key may be left at its end.
      static const auto* registration =
          new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
              sharded_key, c10::KernelFunction::makeFromBoxedFunction<&on_sharded>(),
              "accel: sharded parameters"));
      static_cast<void>(registration);
    } catch (const c10::Error& error) {
      fail(ErrorCategory::usage,
           "accel: the dispatch key {} that sharded parameters need is taken by another library in "
           "this process: {}",
           c10::toString(sharded_key), error.what_without_backtrace());
    }
  });
}

}  // namespace accel::detail
