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

/// A number for a tensor's bits and their places, one int64 on the CPU: NaNs equal themselves.
at::Tensor hash_of(const at::Tensor& tensor) {
  const auto real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const auto bytes = real.contiguous().flatten().view(c10::kByte);
  const auto width = real.element_size();
  const auto bits = bytes.view(width == 8   ? c10::kLong
                               : width == 4 ? c10::kInt
                               : width == 2 ? c10::kShort
                                            : c10::kByte);
  // Odd factors lose no bit of any element.
  const auto factors = at::arange(bits.numel(), bits.options().dtype(c10::kLong)).mul_(2).add_(1);
  return bits.to(c10::kLong).mul_(factors).sum().cpu();
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

void require_same_values(const Communicator& communicator,
                         const std::vector<NamedParameter>& parameters) {
  if (parameters.empty()) return;
  std::vector<at::Tensor> hashes;
  for (const auto& [name, tensor] : parameters) hashes.push_back(hash_of(tensor.detach()));
  // A row a rank, a column a parameter.
  const auto all = communicator.all_gather(at::stack(hashes).unsqueeze(0));
  const auto differs = all.ne(all[0]);
  const auto columns = differs.any(0).nonzero();
  if (columns.numel() == 0) return;
  const auto first = columns[0].item<int64_t>();
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < communicator.size(); ++rank)
    if (differs[rank][first].item<bool>()) ranks.push_back(rank);
  fail(ErrorCategory::collective,
       "accel: rank {}: parameter {} has not the values of rank 0 on rank {}, and backward is to "
       "reduce gradients; step what prepare returned for the optimizer and not the optimizer, edit "
       "parameters on every rank alike, and call average_parameters after steps in no_sync",
       communicator.rank(), parameters[static_cast<size_t>(first)].first, fmt::join(ranks, ", "));
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
