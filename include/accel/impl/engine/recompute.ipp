// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/recompute.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/autocast.hpp>
#include <accel/engine/random_state.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

namespace accel::detail {

namespace {

using torch::autograd::variable_list;

/// Runs the function again, and its backward.
struct Recomputed : torch::autograd::Node {
  TensorFunction function;
  std::vector<torch::autograd::SavedVariable> inputs;
  std::vector<bool> require_grad;
  std::optional<RandomState> random;
  AutocastState autocast;

  std::string name() const override { return "accel::Recomputed"; }
  void release_variables() override {
    for (auto& input : inputs) input.reset_data();
    function = nullptr;
  }

  variable_list apply(variable_list&& gradients) override {
    if (!function)
      fail(ErrorCategory::usage,
           "accel: backward through accel::recompute a second time, after its inputs were freed; "
           "give the first backward retain_graph = true");
    if (at::GradMode::is_enabled())
      fail(ErrorCategory::usage,
           "accel: accel::recompute has no second derivative; call the function itself where "
           "backward is given create_graph = true");
    std::vector<at::Tensor> detached;
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto input = inputs[i].unpack();
      if (input.defined()) input = input.detach();
      if (require_grad[i]) input.requires_grad_(true);
      detached.push_back(input);
    }
    variable_list outputs;
    {
      const RandomStateScope then(*random);
      const at::AutoGradMode recording(true);
      const AutocastScope on_cpu(autocast.cpu.device, autocast.cpu.type, autocast.cpu.enabled);
      const AutocastScope on_cuda(autocast.cuda.device, autocast.cuda.type, autocast.cuda.enabled);
      outputs = function(detached);
    }
    variable_list roots, of_roots;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].defined() && outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        of_roots.push_back(gradients[i]);
      }
    if (!roots.empty()) torch::autograd::backward(roots, of_roots);
    variable_list result;
    for (const auto& input : detached)
      result.push_back(input.defined() ? input.grad() : at::Tensor());
    result.emplace_back();  // of what made the outputs need a gradient
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  auto node = std::make_shared<Recomputed>();
  node->random.emplace(devices_of(inputs));
  std::vector<at::Tensor> outputs;
  {
    const at::NoGradGuard no_grad;
    // A cast weight that is kept without its graph would be taken for the weight by what follows.
    const bool caches = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    struct Back {
      bool was;
      ~Back() { at::autocast::set_autocast_cache_enabled(was); }
    } const back{caches};
    outputs = function(inputs);
  }
  // Parameters that the function captures are not among its inputs: one more input sees to it that
  // backward comes here even where no other needs a gradient.
  auto edges = inputs;
  edges.push_back(at::empty({0}, at::TensorOptions()).requires_grad_(true));
  node->set_next_edges(torch::autograd::collect_next_edges(edges));
  for (const auto& input : inputs) {
    node->inputs.emplace_back(input, /*is_output=*/false);
    node->require_grad.push_back(input.defined() && input.requires_grad());
  }
  node->function = std::move(function);
  for (auto& output : outputs) {
    if (!output.defined() || !torch::autograd::isDifferentiableType(output.scalar_type())) {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
      continue;
    }
    // One that the function hands on is a tensor of somebody else's.
    output = output.variable_data();
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace accel::detail
