// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/norms.hpp>

#include <accel/engine/gradients.hpp>
#include <accel/engine/sharded/flat_storage.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace accel {

at::Tensor joint_norm(const std::vector<at::Tensor>& tensors, double norm_type) {
  if (tensors.empty()) return at::zeros({});
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  // Of sharded tensors one at a time, since each is gathered for it.
  if (std::ranges::any_of(tensors, [](const at::Tensor& tensor) {
        return tensor.key_set().has(detail::sharded_key);
      }))
    for (const auto& tensor : tensors)
      norms.push_back(tensor.numel() > 0 ? at::linalg_vector_norm(tensor, norm_type)
                                         : at::zeros({}, tensor.options()));
  else
    norms = at::_foreach_norm(tensors, norm_type);
  for (auto& norm : norms) norm = norm.to(norms.front().device());
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

at::Tensor joint_norm_of_pieces(const Communicator& communicator,
                                const std::vector<at::Tensor>& pieces, double norm_type) {
  if (pieces.empty()) return at::zeros({});
  const at::NoGradGuard no_grad;
  const bool is_least = std::isinf(norm_type) && norm_type < 0;
  const bool is_sum = std::isfinite(norm_type) && norm_type != 0;
  // An empty piece leaves what the others have.
  const double nothing =
      is_least || (is_sum && norm_type < 0) ? std::numeric_limits<double>::infinity() : 0.0;
  std::vector<at::Tensor> present;
  for (const auto& piece : pieces)
    if (piece.numel() > 0) present.push_back(piece);
  const auto local =
      present.empty() ? std::vector<at::Tensor>() : at::_foreach_norm(present, norm_type);
  auto norms = at::full({static_cast<int64_t>(pieces.size())}, nothing,
                        at::TensorOptions().dtype(at::kDouble));
  for (size_t i = 0, next = 0; i < pieces.size(); ++i)
    if (pieces[i].numel() > 0) norms[static_cast<int64_t>(i)].copy_(local[next++]);
  if (is_sum) norms = norms.pow(norm_type);
  const auto reduction = !std::isinf(norm_type) ? Reduction::sum
                         : is_least             ? Reduction::min
                                                : Reduction::max;
  norms = communicator.all_reduce(norms, reduction);
  if (is_sum) norms = norms.pow(1.0 / norm_type);
  const auto type = pieces.front().scalar_type();
  return at::linalg_vector_norm(norms, norm_type).to(type == at::kDouble ? type : at::kFloat);
}

at::Tensor grad_norm(const torch::nn::Module& module, double norm_type) {
  return joint_norm(gradients_of(unique_tensors(module.parameters())), norm_type);
}

at::Tensor parameter_norm(const torch::nn::Module& module, double norm_type) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : unique_tensors(module.parameters()))
    if (parameter.defined()) values.push_back(parameter.detach());
  return joint_norm(values, norm_type);
}

}  // namespace accel
