// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A handle to a module that computes as the precision policy says. The module itself stays what it
// was: no base class, no wrapped layer, and its own member functions train as well as the handle's
// call operator. Comes after context.hpp.
#pragma once

#include <accel/detail/nested.hpp>
#include <accel/engine/context.hpp>
#include <accel/engine/sync_batch_norm.hpp>

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace accel {

/// What `prepare` returns for a module. Copies share the module.
template <class Module, class Precision, class Context>
class PreparedModel {
 public:
  static constexpr bool autocasts = Precision::compute_type != Precision::parameter_type;
  static constexpr bool narrow_parameters = Precision::parameter_type != element_type::float32;

  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<Context> context)
      : module_(std::move(module)), context_(std::move(context)) {}

  /// The module's `forward`. Under autocast it computes in the policy's compute type and 16-bit
  /// results come back as fp32, so that a loss is computed in fp32. Under 16-bit parameters,
  /// floating-point tensor arguments are cast to them.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    [[maybe_unused]] const auto synchronized = sync_batch_norm();
    [[maybe_unused]] const Offloading offloaded = offloading();
    [[maybe_unused]] const auto recomputed = recomputing();
    if constexpr (autocasts) {
      const auto scope = autocast();
      return widened(module_->forward(std::forward<Arguments>(arguments)...));
    } else if constexpr (narrow_parameters) {
      return widened(module_->forward(narrowed(std::forward<Arguments>(arguments))...));
    } else {
      return module_->forward(std::forward<Arguments>(arguments)...);
    }
  }

  /// Any member of the module: `model->encode(x)`. Under autocast the whole expression runs in its
  /// scope; results are as the module returns them.
  auto operator->() const {
    if constexpr (Context::reduces || Context::offloads_activations || Context::recomputes ||
                  autocasts)
      return Scoped{autocast(), sync_batch_norm(), offloading(), recomputing(), module_.get()};
    else
      return module_.get();
  }

  /// The module, as it was given.
  [[nodiscard]] const std::shared_ptr<Module>& unwrap() const noexcept { return module_; }
  [[nodiscard]] Module& operator*() const noexcept { return *module_; }

 private:
  struct Nothing {};
  using Synchronized =
      std::conditional_t<Context::reduces, std::optional<SyncBatchNormScope>, Nothing>;

  using Cast = std::conditional_t<autocasts, AutocastScope, Nothing>;
  using Recomputing =
      std::conditional_t<Context::recomputes, detail::RecomputedUnits::Scope, Nothing>;

  using Offloading = std::conditional_t<Context::offloads_activations,
                                        detail::OffloadedActivations::Scope, Nothing>;

  struct Scoped {
    Cast scope;
    Synchronized synchronized;
    Offloading offloading;
    Recomputing recomputing;
    Module* module;
    Module* operator->() const noexcept { return module; }
  };

  [[nodiscard]] Cast autocast() const {
    if constexpr (autocasts)
      return {context_->state.device().type(), scalar_type(Precision::compute_type)};
    else
      return {};
  }

  /// What moves what autograd saves, where the placement says so.
  [[nodiscard]] Offloading offloading() const {
    if constexpr (Context::offloads_activations)
      return Offloading(context_->activations, *module_);
    else
      return {};
  }

  /// What has the module's units run again in backward, where the placement says so.
  [[nodiscard]] Recomputing recomputing() const {
    if constexpr (Context::recomputes)
      return Recomputing(context_->recomputed_units_of(*module_));
    else
      return {};
  }

  /// What makes batch normalization that of all ranks, where the options ask for it.
  [[nodiscard]] Synchronized sync_batch_norm() const {
    if constexpr (Context::reduces) {
      if (context_->options.ddp.sync_batch_norm)
        return Synchronized(std::in_place, context_->state.communicator(), module_->is_training());
      return std::nullopt;
    } else {
      return {};
    }
  }

  template <class Result>
  static Result widened(Result result) {
    return detail::map_leaves<at::Tensor>(std::move(result), [](const at::Tensor& tensor) {
      return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type())
                 ? tensor.to(at::kFloat)
                 : tensor;
    });
  }

  template <class Argument>
  static auto narrowed(Argument&& argument) {
    return detail::map_leaves<at::Tensor>(
        std::decay_t<Argument>(std::forward<Argument>(argument)), [](const at::Tensor& tensor) {
          return tensor.defined() && tensor.is_floating_point()
                     ? tensor.to(scalar_type(Precision::parameter_type))
                     : tensor;
        });
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<Context> context_;
};

template <class T>
inline constexpr bool is_prepared_model = false;
template <class M, class P, class C>
inline constexpr bool is_prepared_model<PreparedModel<M, P, C>> = true;

}  // namespace accel
