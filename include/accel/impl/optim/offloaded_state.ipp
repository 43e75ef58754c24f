// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/offloaded_state.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/sharded/flat_storage.hpp>
#include <accel/optim/optimizer_fields.hpp>

#include <ATen/ATen.h>

#include <utility>

namespace accel::detail {

namespace {

/// Takes the gradients of parameters away, and puts them back in the end.
class HiddenGradients {
 public:
  explicit HiddenGradients(torch::optim::Optimizer& optimizer) {
    for (auto& group : optimizer.param_groups())
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        parameters.push_back(parameter);
        gradients_.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
      }
  }
  ~HiddenGradients() {
    for (size_t i = 0; i < parameters.size(); ++i) show(i);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

  void show(size_t i) { parameters[i].mutable_grad() = gradients_[i]; }
  void hide(size_t i) { parameters[i].mutable_grad().reset(); }

  std::vector<at::Tensor> parameters;

 private:
  std::vector<at::Tensor> gradients_;
};

/// `act(value)` for each tensor of a parameter's state.
template <class Act>
void for_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, Act&& act) {
  const auto place = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (place == optimizer.state().end()) return;
  visit_kind(optimizer, [&]<class Kind>(Kind) {
    visit_state(static_cast<typename Kind::ParamState&>(*place->second),
                [&]<class Value>(const char*, Value& value) {
                  if constexpr (std::same_as<Value, at::Tensor>) {
                    if (value.defined() && value.numel() > 0) act(value);
                  }
                });
  });
}

}  // namespace

void OffloadedState::check(const torch::optim::Optimizer& optimizer) {
  if (!is_known_kind(optimizer))
    fail(
        ErrorCategory::usage,
        "accel: offload<optimizer_state> moves the state of AdamW, Adam, SGD, Adagrad and RMSprop, "
        "and a {} was prepared; use one of these, or a placement without offload",
        c10::demangle(typeid(optimizer).name()));
}

void OffloadedState::move(torch::optim::Optimizer& optimizer,
                          const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> in_memory;
  for (const auto& parameter : parameters)
    for_state(optimizer, parameter, [&](const at::Tensor& value) {
      if (!is_in_file(value)) in_memory.push_back(value);
    });
  if (!in_memory.empty()) {
    const auto in_file = file_->move(in_memory);
    size_t next = 0;
    for (const auto& parameter : parameters)
      for_state(optimizer, parameter, [&](at::Tensor& value) {
        if (!is_in_file(value)) value = in_file[next++];
      });
  }
  for (const auto& parameter : parameters)
    for_state(optimizer, parameter, [](const at::Tensor& value) { drop_pages(value); });
}

void OffloadedState::move(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) move(optimizer, group.params());
}

void OffloadedState::step(torch::optim::Optimizer& optimizer, const std::function<void()>& step) {
  HiddenGradients hidden(optimizer);
  const auto& parameters = hidden.parameters;
  for (size_t begin = 0, end = 0; begin < parameters.size(); begin = end) {
    std::size_t bytes = 0;
    for (; end < parameters.size() && (end == begin || bytes < portion); ++end) {
      hidden.show(end);
      bytes += parameters[end].nbytes();
    }
    step();
    const std::vector<at::Tensor> stepped(parameters.begin() + static_cast<std::ptrdiff_t>(begin),
                                          parameters.begin() + static_cast<std::ptrdiff_t>(end));
    move(optimizer, stepped);
    for (size_t i = begin; i < end; ++i) {
      hidden.hide(i);
      if (auto* shard = FlatStorage::of(parameters[i])) shard->drop_pages();
    }
  }
}

}  // namespace accel::detail
