// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The only file that takes the place of LibTorch's autograd engine.
#include <accel/engine/saved_tensors.hpp>

#include <accel/detail/error.hpp>

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <mutex>
#include <ranges>
#include <typeinfo>

namespace accel::detail {

namespace {

/// Those of this thread, innermost last.
thread_local std::vector<SavedTensorKeeper*> keepers;

/// LibTorch's engine, but for what it answers when a tensor is about to be saved.
class KeepingEngine : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    for (auto* keeper : std::views::reverse(keepers))
      if (auto hooks = keeper->next()) return hooks;
    return nullptr;
  }
  static torch::autograd::Engine& the() {
    static auto* const engine =
        new KeepingEngine;  // threads of backward may outlive what is static
    return *engine;
  }
};

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorKeeper& keeper) { keepers.push_back(&keeper); }
SavedTensorScope::~SavedTensorScope() { keepers.pop_back(); }

void install_saved_tensor_hooks(std::string_view policy) {
  static std::once_flag once;
  std::call_once(once, [policy] {
    auto& before = torch::autograd::Engine::get_default_engine();
    if (typeid(before) != typeid(torch::autograd::Engine))
      fail(ErrorCategory::usage,
           "accel: {} needs LibTorch's own autograd engine, and another one is in its place (that "
           "of Python, say); use a placement without it, or accel::recompute(module, inputs...)",
           policy);
    torch::autograd::set_default_engine_stub(&KeepingEngine::the);
  });
}

SavedTensor::SavedTensor(const at::Tensor& given)
    : tensor(given.tensor_data()), home_(given.device()), sizes_(given.sizes().vec()) {
  if (given.is_inference()) return;
  counter_ = given.unsafeGetTensorImpl()->version_counter();
  version_ = counter_.current_version();
}

void SavedTensor::require_unchanged() const {
  if (counter_.enabled() && counter_.current_version() != version_)
    fail(ErrorCategory::usage,
         "accel: a tensor of sizes {} that backward needs was written to after the forward had "
         "saved it (it is at version {}, and {} was saved); write to a copy",
         c10::str(c10::IntArrayRef(sizes_)), counter_.current_version(), version_);
}

at::Tensor SavedTensor::give_back() const {
  require_unchanged();
  return tensor.device() == home_ ? tensor : tensor.to(home_, /*non_blocking=*/true);
}

}  // namespace accel::detail
