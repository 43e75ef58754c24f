// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/replica.hpp>

#include <accel/comm/agreement.hpp>

#include <fmt/ranges.h>

#include <string_view>
#include <typeinfo>

namespace accel::detail {

namespace {

std::string line_of(const std::string& name, const at::Tensor& tensor, const char* remark) {
  return fmt::format("{} {} [{}]{}\n", name, c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), remark);
}

}  // namespace

void require_same_module(const Communicator& communicator, const std::string& options,
                         const std::vector<NamedParameter>& parameters,
                         const torch::nn::Module& module) {
  auto mine = options;
  for (const auto& [name, tensor] : parameters)
    mine += line_of(name, tensor, tensor.requires_grad() ? "" : " frozen");
  for (const auto& buffer : module.named_buffers())
    mine += line_of(buffer.key(), buffer.value(), " buffer");
  require_agreement(communicator, mine, "prepare different models",
                    "Build the same model, in the same order and with the same options, on every "
                    "rank");
}

void broadcast_module(const Communicator& communicator,
                      const std::vector<NamedParameter>& parameters,
                      const torch::nn::Module& module) {
  std::vector<at::Tensor> state;
  for (const auto& [name, tensor] : parameters) state.push_back(tensor.detach());
  for (const auto& buffer : module.buffers()) state.push_back(buffer.detach());
  // What has no values yet gets them from a recipe.
  std::erase_if(state, [](const at::Tensor& tensor) { return tensor.is_meta(); });
  communicator.broadcast_coalesced_(state, 0);
}

void broadcast_buffers(const Communicator& communicator, const torch::nn::Module& module,
                       int root) {
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : module.buffers()) buffers.push_back(buffer.detach());
  communicator.broadcast_coalesced_(buffers, root);
}

void explain_reduction(const Communicator& communicator, const std::exception& failure) {
  // Gloo's exceptions are of its own types, whose headers only the start-up includes.
  const std::string_view text = failure.what(), type = typeid(failure).name();
  const bool of_c10d = dynamic_cast<const c10::DistError*>(&failure) != nullptr ||
                       type.find("gloo") != type.npos ||
                       text.find("third_party/gloo/") != text.npos;
  if (of_c10d) communicator.fail_operation("the reduction of gradients", failure);
}

}  // namespace accel::detail
