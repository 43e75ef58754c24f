// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/power_sgd.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace accel {
namespace {

at::Tensor as_matrix(const at::Tensor& gradient) {
  return gradient.reshape({gradient.size(0), -1});
}

/// An orthonormal basis of the columns. LAPACK has no 16-bit types.
at::Tensor orthogonal(const at::Tensor& matrix) {
  const auto type = matrix.scalar_type();
  const auto wide = at::isReducedFloatingType(type) ? at::kFloat : type;
  return std::get<0>(at::linalg_qr(matrix.to(wide))).to(type);
}

/// Sums several tensors as one message.
void sum_together(std::vector<at::Tensor>& tensors, const PowerSgd::Sum& sum) {
  if (tensors.empty()) return;
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  auto message = at::cat(flat);
  sum(message);
  int64_t place = 0;
  for (auto& tensor : tensors) {
    tensor = message.narrow(0, place, tensor.numel()).reshape(tensor.sizes());
    place += tensor.numel();
  }
}

}  // namespace

void check_power_sgd(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1 || options.start_powerSGD_iter < 2 ||
      !(options.min_compression_rate > 0))
    detail::fail(ErrorCategory::config,
                 "accel: PowerSGD needs matrix_approximation_rank >= 1, start_powerSGD_iter >= 2 "
                 "(buckets change after the first reduction) and min_compression_rate > 0, and got "
                 "{}, {} and {}",
                 options.matrix_approximation_rank, options.start_powerSGD_iter,
                 options.min_compression_rate);
}

PowerSgd::PowerSgd(const PowerSgdOptions& options) : options_(options) { check_power_sgd(options); }

bool PowerSgd::compresses(const at::Tensor& gradient) const {
  if (gradient.dim() < 2) return false;
  const auto rows = gradient.size(0), columns = gradient.numel() / std::max<int64_t>(rows, 1);
  const auto rank = std::min({rows, columns, options_.matrix_approximation_rank});
  return static_cast<double>((rows + columns) * rank) * options_.min_compression_rate <
         static_cast<double>(rows * columns);
}

void PowerSgd::reduce(size_t bucket, bool last, at::Tensor buffer,
                      const std::vector<at::Tensor>& gradients, int ranks, const Sum& sum) {
  const at::NoGradGuard no_grad;
  const auto iteration = reductions_;
  if (last) ++reductions_;
  if (iteration < options_.start_powerSGD_iter) {
    buffer.div_(ranks);
    sum(buffer);
    return;
  }
  auto& memory = memory_[bucket];
  if (!memory.error.defined() || memory.error.numel() != buffer.numel())
    memory = {at::zeros_like(buffer), {}};
  if (options_.use_error_feedback) buffer.add_(memory.error);
  const auto wanted = buffer.clone();

  std::vector<at::Tensor> whole, compressed;
  for (const auto& gradient : gradients)
    (compresses(gradient) ? compressed : whole).push_back(gradient);
  auto sums = whole;
  sum_together(sums, sum);
  for (size_t i = 0; i < whole.size(); ++i) whole[i].copy_(sums[i].div_(ranks));

  std::vector<at::Tensor> p;
  const bool fresh = !options_.warm_start || memory.q.size() != compressed.size();
  if (fresh) memory.q.clear();
  for (size_t i = 0; i < compressed.size(); ++i) {
    const auto matrix = as_matrix(compressed[i]);
    if (fresh) {
      // The same draws on every rank, and others in each iteration.
      auto generator = at::detail::createCPUGenerator(
          static_cast<uint64_t>(options_.random_seed + iteration) * 1000003 + bucket * 1009 + i);
      const auto rank =
          std::min({matrix.size(0), matrix.size(1), options_.matrix_approximation_rank});
      memory.q.push_back(at::randn({matrix.size(1), rank}, generator, at::kFloat)
                             .to(matrix.device(), matrix.scalar_type()));
    }
    memory.q[i] = orthogonal(memory.q[i]);
    p.push_back(at::mm(matrix, memory.q[i]));
  }
  sum_together(p, sum);
  for (size_t i = 0; i < compressed.size(); ++i) {
    p[i] = orthogonal(p[i]);
    memory.q[i] = at::mm(as_matrix(compressed[i]).t(), p[i]);
  }
  sum_together(memory.q, sum);
  for (size_t i = 0; i < compressed.size(); ++i) {
    memory.q[i] = memory.q[i] / ranks;
    compressed[i].copy_(at::mm(p[i], memory.q[i].t()).reshape(compressed[i].sizes()));
  }
  if (options_.use_error_feedback) memory.error = wanted - buffer;
}

}  // namespace accel
