// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The state of one of LibTorch's optimizers by parameter name: tensors for a safetensors part, the
// rest as JSON. Stored by name and full shape, so it does not depend on how many ranks there were
// or how parameters were grouped in memory. Comes after module_state.hpp, whose names it uses. Only
// declares LibTorch's optimizer.
#pragma once

#include <accel/checkpoint/module_state.hpp>
#include <accel/checkpoint/safetensors.hpp>

#include <nlohmann/json.hpp>

#include <functional>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace accel {

struct OptimizerState {
  /// `exp_avg.<name>` and so on: the field of LibTorch's state, then the parameter. Not copies.
  NamedTensors tensors;

  /// {"format": 1, "type": "AdamW", "groups": [{"options": {"lr": ...}, "parameters": [names]}],
  ///  "state": {name: {"step": 3, "tensors": ["exp_avg", ...]}}}
  nlohmann::json description;
};

/// AdamW, Adam, SGD, Adagrad and RMSprop; another type is an Error that names it, and so is a
/// parameter without a name.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer,
                               const ParameterNames& names);

/// Gives a live optimizer the saved state: step counts, tensors (on each parameter's device), and
/// the options of each group, learning rate included. The optimizer, its groups and their option
/// objects stay the same objects. Every difference of type, groups, names and shapes is listed in
/// one Error, and then nothing is changed.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const ParameterNames& names,
                          const nlohmann::json& description, const Safetensors& tensors);

/// The same in two steps: the call throws where anything does not fit, and the function that it
/// returns changes the optimizer, which must live until then. It may be called once.
std::function<void()> plan_optimizer_load(torch::optim::Optimizer& optimizer, ParameterNames names,
                                          nlohmann::json description, Safetensors tensors);

}  // namespace accel
