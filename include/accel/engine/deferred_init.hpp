// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Modules that are constructed without memory for what they hold: constructors run unchanged, their
// operations on `meta` only, and are noted down (operator_tape.hpp). Later they are run for real, one
// parameter after the other: by `prepare`, which keeps of a sharded model each rank's part alone, or
// by `materialize`. A model may so be larger than the memory that builds it.
#pragma once

#include <accel/comm/communicator.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accel {

namespace detail {

/// Tensors that lie where those of a module do which are on meta and have a recipe, under the names
/// of these.
using DeferredTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// How the tensors of some modules come to their values.
class InitRecipe : public std::enable_shared_from_this<InitRecipe> {
 public:
  /// What takes a value: the number of its tensor among those that were asked for.
  using Take = std::function<void(size_t number, const at::Tensor& value)>;

  InitRecipe();
  ~InitRecipe();
  InitRecipe(const InitRecipe&) = delete;
  InitRecipe& operator=(const InitRecipe&) = delete;

  /// The recipe of a tensor that `deferred_init` left on meta; null for any other.
  [[nodiscard]] static std::shared_ptr<InitRecipe> of(const at::Tensor& tensor);

  /// Throws Error(usage) for a tensor that was written to since it was constructed.
  void require_unchanged(const std::string& name, const at::Tensor& tensor) const;

  /// Computes the values of tensors of this recipe on the CPU, and hands each out as soon as it is
  /// whole, in the order of construction; it is freed then. The default generator ends where
  /// constructing would have left it, unless it was used meanwhile: then as it is.
  void run(const DeferredTensors& tensors, const Take& take);

  /// The state of the random numbers that values are drawn from.
  [[nodiscard]] at::Tensor random_state() const;
  void set_random_state(const at::Tensor& state);

  /// What it consists of, for the file that writes it.
  struct Parts;
  [[nodiscard]] Parts& parts() const noexcept { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
};

/// Within it this thread constructs.
class InitScope {
 public:
  InitScope();
  ~InitScope();
  InitScope(const InitScope&) = delete;
  InitScope& operator=(const InitScope&) = delete;

 private:
  std::shared_ptr<InitRecipe> outer_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_;
};

/// Within it LibTorch may look at the addresses of memory that some tensors do not have yet, which it
/// compares in some operations.
class ReadableScope {
 public:
  explicit ReadableScope(const std::vector<at::Tensor>& tensors);
  ~ReadableScope();
  ReadableScope(const ReadableScope&) = delete;
  ReadableScope& operator=(const ReadableScope&) = delete;

 private:
  std::vector<c10::Storage> storages_;
};

/// The parameters and buffers of a module that are on meta and have a recipe. Throws Error(usage),
/// with its name, for one that was written to since.
[[nodiscard]] DeferredTensors deferred_tensors(const torch::nn::Module& module);

/// Runs their recipes; `take` is given a tensor's name and its value.
void run_recipes(const DeferredTensors& tensors,
                 const std::function<void(const std::string&, const at::Tensor&)>& take);
/// Has the recipes draw rank 0's random numbers. Every rank must call this.
void share_random_state(const Communicator& communicator, const DeferredTensors& tensors);

/// Has a tensor, perhaps one on meta, lie where `holder` does.
void give_memory(const at::Tensor& tensor, const at::Tensor& holder);

}  // namespace detail

/// Runs `make`, which constructs one or several modules, and returns what it returns. Parameters and
/// buffers are on meta until `prepare` or `materialize` gives them the values that constructing
/// would have given them here, with the random numbers as they are now. Initialise weights inside;
/// a value that is written to afterwards is an error there. Throws Error(usage) where a constructor
/// needs the value of a tensor.
///
///     auto net = accel::deferred_init([&] { return Gpt(size); });
///     auto [model, optimizer] = accelerator.prepare(net, adamw);
template <class Make>
[[nodiscard]] auto deferred_init(Make&& make) {
  const detail::InitScope scope;
  return std::forward<Make>(make)();
}

/// Gives a module that `deferred_init` made its values, whole, in this process. Does nothing to any
/// other. Local.
void materialize(torch::nn::Module& module);

}  // namespace accel
