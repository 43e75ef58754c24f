// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The fields of LibTorch's optimizers, each listed once, so that writing and reading cannot differ.
// optimizer_state.hpp is built on it; a further optimizer is added here. Includes LibTorch's
// optimizers.
#pragma once

#include <accel/detail/error.hpp>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <type_traits>
#include <typeinfo>

namespace accel::detail {

/// A type of LibTorch's optimizers, and the classes behind its groups' options and its parameters'
/// state.
template <class OptionsType, class ParamStateType>
struct OptimizerKind {
  using Options = OptionsType;
  using ParamState = ParamStateType;
  const char* name;
};

/// Calls `visitor` with the kind of an optimizer; throws, naming its type, for any other.
// Exact types: a class derived from AdamW may have state of its own, which would be lost in
// silence.
template <class Visitor>
void visit_kind(const torch::optim::Optimizer& optimizer, Visitor&& visitor) {
  namespace optim = torch::optim;
  const auto& type = typeid(optimizer);
  if (type == typeid(optim::AdamW)) {
    visitor(OptimizerKind<optim::AdamWOptions, optim::AdamWParamState>{"AdamW"});
  } else if (type == typeid(optim::Adam)) {
    visitor(OptimizerKind<optim::AdamOptions, optim::AdamParamState>{"Adam"});
  } else if (type == typeid(optim::SGD)) {
    visitor(OptimizerKind<optim::SGDOptions, optim::SGDParamState>{"SGD"});
  } else if (type == typeid(optim::Adagrad)) {
    visitor(OptimizerKind<optim::AdagradOptions, optim::AdagradParamState>{"Adagrad"});
  } else if (type == typeid(optim::RMSprop)) {
    visitor(OptimizerKind<optim::RMSpropOptions, optim::RMSpropParamState>{"RMSprop"});
  } else {
    fail(ErrorCategory::checkpoint,
         "the state of a {} cannot be saved or loaded; AdamW, Adam, SGD, Adagrad and RMSprop can",
         c10::demangle(type.name()));
  }
}

/// Whether visit_kind knows the optimizer's type.
[[nodiscard]] inline bool is_known_kind(const torch::optim::Optimizer& optimizer) {
  try {
    visit_kind(optimizer, [](auto) {});
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// `field(name, value)` for each option of a group, in place.
template <class Options, class Field>
void visit_options(Options& options, Field&& field) {
  using Type = std::remove_const_t<Options>;
  namespace optim = torch::optim;
  field("lr", options.lr());
  field("weight_decay", options.weight_decay());
  if constexpr (std::same_as<Type, optim::AdamWOptions> || std::same_as<Type, optim::AdamOptions>) {
    field("betas", options.betas());
    field("eps", options.eps());
    field("amsgrad", options.amsgrad());
  } else if constexpr (std::same_as<Type, optim::SGDOptions>) {
    field("momentum", options.momentum());
    field("dampening", options.dampening());
    field("nesterov", options.nesterov());
  } else if constexpr (std::same_as<Type, optim::AdagradOptions>) {
    field("lr_decay", options.lr_decay());
    field("initial_accumulator_value", options.initial_accumulator_value());
    field("eps", options.eps());
  } else {
    static_assert(std::same_as<Type, optim::RMSpropOptions>);
    field("alpha", options.alpha());
    field("eps", options.eps());
    field("momentum", options.momentum());
    field("centered", options.centered());
  }
}

/// `field(name, value)` for what an optimizer keeps of one parameter, in place: tensors, and the
/// count of steps.
template <class ParamState, class Field>
void visit_state(ParamState& state, Field&& field) {
  using Type = std::remove_const_t<ParamState>;
  namespace optim = torch::optim;
  if constexpr (std::same_as<Type, optim::SGDParamState>) {
    field("momentum_buffer", state.momentum_buffer());
  } else {
    field("step", state.step());
    if constexpr (std::same_as<Type, optim::AdagradParamState>) {
      field("sum", state.sum());
    } else if constexpr (std::same_as<Type, optim::RMSpropParamState>) {
      field("square_avg", state.square_avg());
      field("momentum_buffer", state.momentum_buffer());
      field("grad_avg", state.grad_avg());
    } else {
      field("exp_avg", state.exp_avg());
      field("exp_avg_sq", state.exp_avg_sq());
      field("max_exp_avg_sq", state.max_exp_avg_sq());
    }
  }
}

}  // namespace accel::detail
