// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/operator_tape.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <unordered_set>

namespace accel::detail {

namespace {

Geometry geometry_of(const at::Tensor& tensor) {
  return {tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec(),
          tensor.scalar_type(),    tensor.is_conj(),     tensor.is_neg()};
}

/// A list of the same type without its tensors; any other value as it is.
c10::IValue without_tensors(const c10::IValue& value) {
  if (value.isTensor()) return {};
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  auto list = value.toList().copy();
  for (size_t i = 0; i < list.size(); ++i)
    list.set(i, value.isTensorList() ? c10::IValue(at::Tensor()) : c10::IValue());
  return list;
}

at::Tensor value_of(const std::vector<std::vector<at::Tensor>>& results,
                    const TapeReference& reference) {
  const auto& tensor = results[reference.operation].at(reference.tensor);
  if (!reference.view) return tensor;
  return tensor.as_strided(reference.view->sizes, reference.view->strides, reference.view->offset);
}

bool makes_unwritten(const std::string& name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

/// Statistics that a normalization updates beside what it returns.
bool is_running_statistic(const std::string& argument) {
  return argument == "running_mean" || argument == "running_var";
}

bool is_versioned(const at::Tensor& tensor) { return tensor.defined() && !tensor.is_inference(); }

}  // namespace

void OperatorTape::keep(std::string why) {
  if (why_kept_.empty()) why_kept_ = std::move(why);
}

std::optional<size_t> OperatorTape::memory_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const auto place = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  if (place == by_storage_.end() || memories_[place->second].is_foreign) return std::nullopt;
  return place->second;
}

std::optional<TapeReference> OperatorTape::find_in(size_t memory, const at::Tensor& tensor) const {
  const auto& tensors = memories_[memory].tensors;
  auto geometry = geometry_of(tensor);
  // The last one, which has all that was written before.
  for (const auto& [source, own] : std::views::reverse(tensors))
    if (own == geometry) return source;
  for (const auto& [source, own] : std::views::reverse(tensors))
    if (own.reads_like(geometry)) {
      auto reference = source;
      reference.view = std::move(geometry);
      return reference;
    }
  return std::nullopt;
}

std::optional<TapeReference> OperatorTape::find(const at::Tensor& tensor) const {
  const auto memory = memory_of(tensor);
  if (!memory) return std::nullopt;
  if (draws_ == Draws::of_each && memories_[*memory].is_unwritten && tensor.numel() > 0)
    return std::nullopt;
  return find_in(*memory, tensor);
}

OperatorTape::Operation OperatorTape::begin(const c10::OperatorHandle& handle,
                                            std::span<const c10::IValue> arguments) const {
  Operation operation{handle};
  const auto& name = handle.operator_name().name;
  const auto& schema = handle.schema();
  // Called boxed, LibTorch shows the whole stack.
  arguments = arguments.last(schema.arguments().size());
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (arguments[i].isGenerator() && arguments[i].toGenerator().defined())
      operation.why_kept = name + " draws from a generator of its own";
    const auto* alias = argument.alias_info();
    const bool is_written = alias && alias->isWrite() && !is_running_statistic(argument.name());
    const bool is_read = !alias || is_running_statistic(argument.name());
    for_tensors(arguments[i], [&](const at::Tensor& tensor, std::optional<size_t> element) {
      tensors.push_back(tensor);
      const auto memory = memory_of(tensor);
      const bool is_from_pointer = memory && is_read && draws_ == Draws::of_each &&
                                   memories_[*memory].is_unwritten && tensor.numel() > 0;
      if (is_from_pointer) operation.turns_foreign.push_back(*memory);
      const auto source = memory && !is_from_pointer ? find_in(*memory, tensor) : std::nullopt;
      if (source) {
        operation.computed.emplace_back(Operation::Place{i, element}, *source);
        operation.reads.push_back(*memory);
        if (is_written) operation.writes.push_back(*memory);
        return;
      }
      if (memory && is_written) operation.why_kept = name + " writes to a tensor in another form";
      operation.writes_outside = operation.writes_outside || (is_written && tensor.defined());
      operation.outside.push_back(
          {{i, element}, tensor, is_versioned(tensor) ? tensor._version() : 0});
    });
    operation.arguments.push_back(without_tensors(arguments[i]));
  }
  if (draws_ == Draws::of_each && handle.hasTag(at::Tag::nondeterministic_seeded))
    operation.random.emplace(devices_of(tensors));
  return operation;
}

void OperatorTape::end(Operation operation, std::span<const c10::IValue> results) {
  if (!why_kept_.empty()) return;
  const auto& name = operation.handle.operator_name().name;
  const auto expected = operation.handle.schema().returns().size();
  if (!operation.why_kept.empty()) return keep(std::move(operation.why_kept));
  if (results.size() < expected) return keep(name + " threw");
  if (name.starts_with("c10d::") || name.starts_with("_c10d_functional::"))
    return keep(name + " communicates");

  for (const auto memory : operation.turns_foreign) memories_[memory].is_foreign = true;
  for (const auto memory : operation.writes) memories_[memory].is_unwritten = false;
  const auto is_outside = [&](const at::Tensor& result) {
    return std::ranges::any_of(operation.outside, [&](const auto& each) {
      return each.tensor.defined() && each.tensor.has_storage() &&
             each.tensor.storage().unsafeGetStorageImpl() ==
                 result.storage().unsafeGetStorageImpl();
    });
  };
  for (const auto& result : results.last(expected))
    for_tensors(result, [&](const at::Tensor& tensor, std::optional<size_t>) {
      const TapeReference reference{operations_.size(), operation.memory_of_result.size()};
      operation.memory_of_result.emplace_back();
      if (!tensor.defined() || !tensor.has_storage() || is_outside(tensor)) return;
      auto* storage = tensor.storage().unsafeGetStorageImpl();
      const auto [place, is_new] = by_storage_.try_emplace(storage, memories_.size());
      if (is_new)
        memories_.push_back(
            {c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()),
             {},
             makes_unwritten(name)});
      memories_[place->second].tensors.emplace_back(reference, geometry_of(tensor));
      operation.writes.push_back(place->second);
      operation.memory_of_result.back() = place->second;
    });
  if (operation.writes_outside) {
    // Done once, it is not to be done again: a counter, say.
    if (!operation.writes.empty()) return keep(name + " writes to a tensor from outside");
    return;
  }
  operations_.push_back(std::move(operation));
}

std::optional<size_t> TapeOperation::changed() const {
  for (size_t i = 0; i < outside.size(); ++i) {
    const auto& [place, tensor, version, home] = outside[i];
    const auto& argument = handle.schema().arguments()[place.argument].name();
    if (is_versioned(tensor) && tensor._version() != version && !is_running_statistic(argument))
      return i;
  }
  return std::nullopt;
}

void OperatorTape::check_outside() {
  for (const auto& operation : operations_)
    if (operation.changed())
      return keep("an argument of " + operation.handle.operator_name().name + " was written to");
}

void OperatorTape::close(const std::vector<TapeReference>& wanted) {
  std::unordered_map<size_t, std::vector<size_t>> wanted_in;  // a memory
  std::unordered_set<size_t> memories;
  for (size_t number = 0; number < wanted.size(); ++number) {
    const auto& maker = operations_[wanted[number].operation];
    const auto memory = maker.memory_of_result[wanted[number].tensor].value();
    wanted_in[memory].push_back(number);
    memories.insert(memory);
  }
  std::vector<bool> used(operations_.size());
  const auto use = [&](Operation& here, size_t source) {
    if (used[source]) return;
    used[source] = true;
    here.last_use_of.push_back(source);
  };
  for (size_t i = operations_.size(); i-- > 0;) {
    auto& operation = operations_[i];
    operation.is_wanted = std::ranges::any_of(
        operation.writes, [&](size_t memory) { return memories.contains(memory); });
    for (const auto memory : operation.writes)
      if (const auto complete = wanted_in.extract(memory))
        for (const auto number : complete.mapped()) {
          operation.completes.push_back(number);
          use(operation, wanted[number].operation);
        }
    if (!operation.is_wanted) {
      operation.arguments.clear();
      operation.computed.clear();
      operation.outside.clear();
      operation.random.reset();
      continue;
    }
    memories.insert(operation.reads.begin(), operation.reads.end());
    for (const auto& [place, source] : operation.computed) use(operation, source.operation);
  }
  memories_ = {};
  by_storage_ = {};
}

void OperatorTape::replace_outside(const std::function<at::Tensor(const at::Tensor&)>& move) {
  for (auto& operation : operations_)
    for (auto& [place, tensor, version, home] : operation.outside) {
      // Statistics are not read as they were then.
      if (!tensor.defined() ||
          is_running_statistic(operation.handle.schema().arguments()[place.argument].name()))
        continue;
      auto moved = move(tensor);
      if (moved.is_same(tensor)) continue;
      if (moved.device() != tensor.device()) home = tensor.device();
      version = moved._version();
      tensor = std::move(moved);
    }
}

void OperatorTape::run(const Operation& operation,
                       const std::vector<std::vector<at::Tensor>>& results,
                       std::vector<at::Tensor>& returned) const {
  if (const auto changed = operation.changed())
    fail(ErrorCategory::usage,
         "accel: recomputed<...> runs {} again in backward, and one of its arguments, a tensor of "
         "sizes {}, was written to since forward; write to a copy",
         operation.handle.operator_name().name,
         c10::str(operation.outside[*changed].tensor.sizes()));
  const auto& arguments = operation.handle.schema().arguments();
  auto stack = operation.arguments;
  for (auto& value : stack)
    if (value.isTensorList() || value.isOptionalTensorList()) value = value.toList().copy();
  const auto put = [&](const Operation::Place& place, const at::Tensor& tensor) {
    if (!place.element)
      stack[place.argument] = tensor;
    else
      stack[place.argument].toList().set(*place.element, tensor);
  };
  for (const auto& [place, source] : operation.computed) put(place, value_of(results, source));
  for (const auto& [place, tensor, version, home] : operation.outside) {
    // Statistics have been updated already.
    const bool updates = is_running_statistic(arguments[place.argument].name()) && tensor.defined();
    put(place, updates ? tensor.clone() : home ? tensor.to(*home, /*non_blocking=*/true) : tensor);
  }
  const AutocastStateScope cast(operation.autocast);
  std::optional<RandomStateScope> then;
  if (operation.random) {
    // With a generator of its own, so that nobody else's draws are in the way.
    const auto generator = std::ranges::find_if(
        arguments, [](const auto& argument) { return argument.name() == "generator"; });
    if (generator != arguments.end() && operation.random->is_of_cpu_only()) {
      auto own = at::make_generator<at::CPUGeneratorImpl>();
      own.set_state(operation.random->of_cpu());
      stack[static_cast<size_t>(generator - arguments.begin())] = own;
    } else {
      then.emplace(*operation.random);
    }
  }
  operation.handle.callBoxed(stack);
  for (const auto& value : stack)
    for_tensors(value, [&](const at::Tensor& tensor, std::optional<size_t>) {
      returned.push_back(tensor);
    });
}

std::optional<RandomState> OperatorTape::replay(const std::vector<TapeReference>& wanted,
                                                const Take& take) const {
  std::optional<RandomStateScope> then;
  if (random_) then.emplace(*random_);
  // Not recorded again; but some operations return what their backward needs only where gradients
  // are enabled (mkldnn_rnn_layer does).
  const at::AutoGradMode gradients(true);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<std::vector<at::Tensor>> results(operations_.size());
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (!operations_[i].is_wanted) continue;
    run(operations_[i], results, results[i]);
    for (const auto number : operations_[i].completes)
      take(number, value_of(results, wanted[number]));
    for (const auto earlier : operations_[i].last_use_of) results[earlier].clear();
  }
  return random_ ? std::optional(random_->now()) : std::nullopt;
}

}  // namespace accel::detail
