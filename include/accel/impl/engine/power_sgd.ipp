// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/power_sgd.hpp>

#include <accel/detail/error.hpp>
#include <accel/detail/fnv.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <utility>

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

at::Tensor PowerSgd::draw(std::string_view name, int64_t rows, int64_t columns) const {
  detail::Fnv1a of_name;
  for (const char letter : name) of_name.add(static_cast<unsigned char>(letter));
  const auto seed = of_name.value() + static_cast<uint64_t>(options_.random_seed + iterations_);
  return at::randn({rows, columns}, at::detail::createCPUGenerator(seed), at::kFloat);
}

void PowerSgd::reduce(bool last, at::Tensor buffer, const NamedTensors& gradients, int ranks,
                      const Sum& sum) {
  const at::NoGradGuard no_grad;
  const bool exact = iterations_ < options_.start_powerSGD_iter;
  if (exact) {
    buffer.div_(ranks);
    sum(buffer);
    if (last) ++iterations_;
    return;
  }

  struct Compressed {
    at::Tensor gradient, wanted;
    Memory* memory;
  };
  std::vector<at::Tensor> whole, p, q;
  std::vector<Compressed> compressed;
  for (const auto& [name, gradient] : gradients) {
    if (!compresses(gradient)) {
      whole.push_back(gradient);
      continue;
    }
    auto& memory = memory_[name];
    if (options_.use_error_feedback && memory.error.defined() &&
        memory.error.sizes() == gradient.sizes())
      gradient.add_(memory.error.to(gradient.device()));
    compressed.push_back(
        {gradient, options_.use_error_feedback ? gradient.clone() : at::Tensor(), &memory});
    const auto matrix = as_matrix(gradient);
    const auto rank =
        std::min({matrix.size(0), matrix.size(1), options_.matrix_approximation_rank});
    const bool fresh = !options_.warm_start || !memory.q.defined() ||
                       memory.q.size(0) != matrix.size(1) || memory.q.size(1) != rank;
    if (fresh) memory.q = draw(name, matrix.size(1), rank);
    q.push_back(orthogonal(memory.q.to(matrix.device(), matrix.scalar_type())));
    p.push_back(at::mm(matrix, q.back()));
  }
  auto sums = whole;
  sum_together(sums, sum);
  for (size_t i = 0; i < whole.size(); ++i) whole[i].copy_(sums[i].div_(ranks));

  sum_together(p, sum);
  for (size_t i = 0; i < compressed.size(); ++i) {
    p[i] = orthogonal(p[i]);
    q[i] = at::mm(as_matrix(compressed[i].gradient).t(), p[i]);
  }
  sum_together(q, sum);
  for (size_t i = 0; i < compressed.size(); ++i) {
    auto& [gradient, wanted, memory] = compressed[i];
    // An overflow of any rank is in every rank's sum. The step is skipped, and nothing of it remembered.
    if (!at::isfinite(q[i]).all().item<bool>()) {
      gradient.fill_(std::numeric_limits<double>::quiet_NaN());
      *memory = {};
      continue;
    }
    memory->q = q[i] / ranks;
    gradient.copy_(at::mm(p[i], memory->q.t()).reshape(gradient.sizes()));
    if (options_.use_error_feedback) memory->error = wanted.sub_(gradient);
  }
  if (last) ++iterations_;
}

PowerSgd::NamedTensors PowerSgd::state() const {
  NamedTensors state{{"iterations", at::full({}, iterations_, at::kLong)}};
  for (const auto& [name, memory] : memory_) {
    if (memory.error.defined()) state.emplace_back(name + ".error", memory.error);
    if (memory.q.defined()) state.emplace_back(name + ".q", memory.q);
  }
  return state;
}

void PowerSgd::load_state(const NamedTensors& state, bool own) {
  int64_t iterations = 0;
  std::map<std::string, Memory, std::less<>> memory;
  for (const auto& [name, tensor] : state) {
    const std::string_view key = name;
    if (name == "iterations" && tensor.scalar_type() == at::kLong && tensor.numel() == 1) {
      iterations = tensor.item<int64_t>();
    } else if (key.ends_with(".error")) {
      if (own) memory[std::string(key.substr(0, key.size() - 6))].error = tensor.clone();
    } else if (key.ends_with(".q") && tensor.dim() == 2) {
      memory[std::string(key.substr(0, key.size() - 2))].q = tensor.clone();
    } else {
      detail::fail(ErrorCategory::checkpoint,
                   "accel: '{}' is no tensor of a state of PowerSGD; the state is damaged", name);
    }
  }
  iterations_ = iterations;
  memory_ = std::move(memory);
}

}  // namespace accel
