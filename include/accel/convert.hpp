// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Another strategy for a training that is under way: what Accelerator::convert does. Comes before
// accelerator.hpp, and of policies knows only whether there are fp32 masters.
#pragma once

#include <accel/comm/partial_state.hpp>
#include <accel/data/prepared_loader.hpp>
#include <accel/data/stream_loader.hpp>
#include <accel/engine/accelerator_options.hpp>
#include <accel/engine/gradients.hpp>
#include <accel/engine/power_sgd.hpp>
#include <accel/engine/prepared_model.hpp>
#include <accel/optim/lr_scheduler.hpp>
#include <accel/optim/optimizer_pieces.hpp>
#include <accel/optim/prepared_optimizer.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace accel::detail {

template <class T>
concept IsAccelerator = std::derived_from<T, PartialState> && requires {
  typename T::Shared;
  typename T::PrecisionType;
};

// What a handle was made of, as `prepare` takes it.

template <class Module, class Precision, class Context>
auto unprepared(const PreparedModel<Module, Precision, Context>& model) {
  return model.unwrap();
}
template <class Optimizer, class Precision, class Context>
auto unprepared(const PreparedOptimizer<Optimizer, Precision, Context>& optimizer) {
  return optimizer.shared();
}
template <class Schedule, class Context>
auto unprepared(const PreparedScheduler<Schedule, Context>& schedule) {
  return schedule.shared();
}
template <class Dataset, class Collate>
auto unprepared(const PreparedDataLoader<Dataset, Collate>& loader) {
  return loader.unprepared();
}
template <class Stream, class Collate, class Slice>
auto unprepared(const PreparedStreamLoader<Stream, Collate, Slice>& loader) {
  return loader.unprepared();
}

template <class T>
concept IsPrepared = requires(const T& handle) { unprepared(handle); };
template <class T>
concept HasPosition = requires(T& handle) { handle.load_state(handle.state()); };

template <class Other>
struct Conversion {
  template <class From, class... Prepared>
  static auto of(From& from, const AcceleratorOptions& options, const Prepared&... prepared) {
    static_assert(IsAccelerator<Other>,
                  "accel: convert<Other> needs an Accelerator<...>; use the type that the training "
                  "goes on with");
    static_assert((IsPrepared<Prepared> && ...),
                  "accel: convert needs what prepare returned; use the accelerator's handles of "
                  "models, optimizers, loaders and schedules");
    from.require_between_loops("convert");
    Other other(static_cast<const PartialState&>(from), options);
    const auto modules = from.shared_->modules();
    std::vector<std::pair<const torch::nn::Module*, PowerSgd>> hooks;
    for (const auto& module : modules)
      if (const auto* hook = from.shared_->power_sgd_of(*module))
        hooks.emplace_back(module.get(), *hook);
    const auto copies = values_to_keep(from);
    try {
      if constexpr (From::PrecisionType::parameter_type != element_type::float32 &&
                    Other::PrecisionType::parameter_type == element_type::float32)
        for (const auto& module : modules) cast_floating_(*module, at::kFloat);
      (cast_state(prepared), ...);
      if constexpr (requires { from.shared_->scaler.state(), other.shared_->scaler.state(); }) {
        from.shared_->settle_scaler();
        other.shared_->scaler.load_state(from.shared_->scaler.state());
      }
      auto& window = other.shared_->step.window();
      if constexpr (requires { window.set_steps(1); })
        window.set_steps(from.shared_->step.window().steps());
      other.state_.take_values(from.state_);
      auto given = std::tuple<decltype(unprepared(prepared))...>(unprepared(prepared)...);
      auto again =
          std::apply([&](auto&... objects) { return as_tuple(other.prepare(objects...)); }, given);
      const auto old = std::tie(prepared...);
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        (go_on(std::get<I>(again), std::get<I>(old)), ...);
      }(std::index_sequence_for<Prepared...>());
      restore(other, copies);
      for (const auto& [module, hook] : hooks)
        if (auto* other_hook = other.shared_->power_sgd_of(*module))
          other_hook->load_state(hook.state());
      other.trackers_.swap(from.trackers_);
      return std::pair(std::move(other), std::move(again));
    } catch (...) {
      // What is sharded becomes whole again, and copies give back the bits that they have.
      other.free_memory();
      const at::NoGradGuard no_grad;
      for (const auto& [value, parameter] : copies) parameter.copy_(value);
      throw;
    }
  }

 private:
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

  template <class... Handles>
  static auto as_tuple(std::tuple<Handles...> handles) {
    return handles;
  }
  template <class Handle>
  static auto as_tuple(Handle handle) {
    return std::tuple<Handle>(std::move(handle));
  }

  /// Lets go of what `from` has, and returns parameters in the type that they are stepped in, where
  /// it is wider than what the parameters will be in between.
  template <class From>
  static Copies values_to_keep(From& from) {
    using OldPrecision = typename From::PrecisionType;
    using NewPrecision = typename Other::PrecisionType;
    std::vector<at::Tensor> parameters;
    for (const auto& model : from.shared_->modules())
      for (const auto& parameter : unique_tensors(model->parameters()))
        parameters.push_back(parameter);
    Copies copies = from.release_prepared();
    if constexpr (NewPrecision::master_weights && !OldPrecision::master_weights)
      for (const auto& parameter : parameters)
        if (!c10::isReducedFloatingType(parameter.scalar_type()))
          copies.emplace_back(parameter.detach().clone(), parameter);
    return copies;
  }

  /// Gives parameters and their fp32 copies the values that were kept.
  static void restore(Other& other, const Copies& copies) {
    if (copies.empty()) return;
    [[maybe_unused]] const auto whole = other.shared_->assembled();
    const at::NoGradGuard no_grad;
    std::vector<std::pair<at::Tensor, at::Tensor>> targets;
    for (const auto& optimizer : other.shared_->optimizers)
      if (optimizer->masters)
        for (auto& pair : optimizer->masters()) targets.push_back(std::move(pair));
    for (const auto& [value, parameter] : copies) {
      at::Tensor parameter_of_model = parameter;
      parameter_of_model.copy_(value);
      for (auto& [own, of] : targets)
        if (of.is_same(parameter) && !own.is_same(parameter)) own.copy_(value);
    }
    // Now that they agree: a later write to a parameter is the user's.
    for (const auto& optimizer : other.shared_->optimizers)
      if (optimizer->masters) (void)optimizer->masters();
  }

  /// The state of an optimizer comes to the type of what it will step.
  template <class Handle>
  static void cast_state(const Handle& handle) {
    using Precision = typename Other::PrecisionType;
    if constexpr (requires { handle.param_groups(); })
      detail::cast_state(handle.unwrap(), Precision::master_weights
                                              ? at::kFloat
                                              : scalar_type(Precision::parameter_type));
  }

  template <class New, class Old>
  static void go_on(New& loader, const Old& old) {
    if constexpr (HasPosition<New>) loader.load_state(old.state());
  }
};

}  // namespace accel::detail
