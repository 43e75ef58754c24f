// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/fused.hpp>

#include <ATen/ATen.h>

namespace accel {

const at::Tensor& FusedScratch::step_tensor(const at::Tensor& parameter, int64_t step) {
  auto& tensor = step_tensors_[parameter.unsafeGetTensorImpl()];
  if (!tensor.defined() || tensor.device() != parameter.device())
    tensor = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(parameter.device()));
  if (tensor.is_cpu())
    *tensor.mutable_data_ptr<float>() = static_cast<float>(step);
  else
    tensor.fill_(static_cast<double>(step));
  return tensor;
}

namespace {

/// Whether the kernels take every gradient of a group: dense, real, of one device and dtype, as the
/// parameters are.
bool is_uniform(const std::vector<at::Tensor>& parameters) {
  const at::Tensor* first = nullptr;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (!first) first = &parameter;
    if (gradient.layout() != at::kStrided || !at::isFloatingType(gradient.scalar_type()) ||
        gradient.scalar_type() != first->scalar_type() ||
        parameter.scalar_type() != first->scalar_type() || parameter.device() != first->device())
      return false;
  }
  return true;
}

/// Empties the lists at the end of a step: what they held on to could not be freed by zero_grad.
struct Emptied {
  FusedScratch& scratch;
  ~Emptied() { scratch.clear(); }
};

template <class Optimizer>
bool all_uniform(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups())
    if (!is_uniform(group.params())) return false;
  return true;
}

/// The state object of a parameter, made on first use.
template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

at::Tensor zeros_for(const at::Tensor& parameter) {
  return at::zeros_like(parameter, parameter.options(), at::MemoryFormat::Preserve);
}

/// Adam and AdamW differ in the kernel only, and amsgrad in one more list.
template <class State, class Options, class Optimizer, class Kernel>
void adam_step(Optimizer& optimizer, FusedScratch& scratch, Kernel&& kernel) {
  const at::NoGradGuard no_grad;
  const Emptied emptied{scratch};
  if (!all_uniform(optimizer)) {
    optimizer.step();
    return;
  }
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    scratch.clear();
    for (auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = state_of<State>(optimizer, parameter);
      if (!state.exp_avg().defined()) {
        state.step(0);
        state.exp_avg(zeros_for(parameter));
        state.exp_avg_sq(zeros_for(parameter));
      }
      if (options.amsgrad() && !state.max_exp_avg_sq().defined())
        state.max_exp_avg_sq(zeros_for(parameter));
      state.step(state.step() + 1);
      scratch.parameters.push_back(parameter);
      scratch.gradients.push_back(parameter.grad());
      scratch.first.push_back(state.exp_avg());
      scratch.second.push_back(state.exp_avg_sq());
      if (options.amsgrad()) scratch.largest.push_back(state.max_exp_avg_sq());
      scratch.steps.push_back(scratch.step_tensor(parameter, state.step()));
    }
    if (scratch.parameters.empty()) continue;
    const auto [beta1, beta2] = options.betas();
    kernel(scratch, options, beta1, beta2);
  }
}

}  // namespace

void fused_step(torch::optim::AdamW& optimizer, FusedScratch& scratch) {
  adam_step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(
      optimizer, scratch, [](FusedScratch& lists, const auto& options, double beta1, double beta2) {
        at::_fused_adamw_(lists.parameters, lists.gradients, lists.first, lists.second,
                          lists.largest, lists.steps, options.lr(), beta1, beta2,
                          options.weight_decay(), options.eps(), options.amsgrad(),
                          /*maximize=*/false);
      });
}

void fused_step(torch::optim::Adam& optimizer, FusedScratch& scratch) {
  adam_step<torch::optim::AdamParamState, torch::optim::AdamOptions>(
      optimizer, scratch, [](FusedScratch& lists, const auto& options, double beta1, double beta2) {
        at::_fused_adam_(lists.parameters, lists.gradients, lists.first, lists.second,
                         lists.largest, lists.steps, options.lr(), beta1, beta2,
                         options.weight_decay(), options.eps(), options.amsgrad(),
                         /*maximize=*/false);
      });
}

void fused_step(torch::optim::SGD& optimizer, FusedScratch& scratch) {
  const at::NoGradGuard no_grad;
  const Emptied emptied{scratch};
  if (!all_uniform(optimizer)) {
    optimizer.step();
    return;
  }
  using State = torch::optim::SGDParamState;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
    const bool has_momentum = options.momentum() != 0;
    // The kernel's "first step" is a matter of all its parameters: those that have no buffer yet go
    // in a call of their own, after the others, so that a buffer made in this step does not count
    // as an old one.
    for (const bool first_step : {false, true}) {
      if (first_step && !has_momentum) break;
      scratch.clear();
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        if (has_momentum) {
          auto& state = state_of<State>(optimizer, parameter);
          if (state.momentum_buffer().defined() == first_step) continue;
          scratch.first.push_back(first_step ? at::empty_like(parameter) : state.momentum_buffer());
        }
        scratch.parameters.push_back(parameter);
        scratch.gradients.push_back(parameter.grad());
      }
      if (scratch.parameters.empty()) continue;
      at::_fused_sgd_(scratch.parameters, scratch.gradients, scratch.first, options.weight_decay(),
                      options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                      /*maximize=*/false, first_step);
      if (first_step)
        for (size_t i = 0; i < scratch.parameters.size(); ++i)
          state_of<State>(optimizer, scratch.parameters[i]).momentum_buffer(scratch.first[i]);
    }
  }
}

void fused_step(torch::optim::Adagrad& optimizer, FusedScratch& scratch) {
  const at::NoGradGuard no_grad;
  const Emptied emptied{scratch};
  if (!all_uniform(optimizer)) {
    optimizer.step();
    return;
  }
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
    scratch.clear();
    for (auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = state_of<torch::optim::AdagradParamState>(optimizer, parameter);
      if (!state.sum().defined()) {
        state.step(0);
        state.sum(at::full_like(parameter, options.initial_accumulator_value(),
                                at::MemoryFormat::Preserve));
      }
      state.step(state.step() + 1);
      scratch.parameters.push_back(parameter);
      scratch.gradients.push_back(parameter.grad());
      scratch.first.push_back(state.sum());
      scratch.steps.push_back(scratch.step_tensor(parameter, state.step()));
    }
    if (scratch.parameters.empty()) continue;
    at::_fused_adagrad_(scratch.parameters, scratch.gradients, scratch.first, scratch.steps,
                        options.lr(), options.lr_decay(), options.weight_decay(), options.eps(),
                        /*maximize=*/false);
  }
}

}  // namespace accel
