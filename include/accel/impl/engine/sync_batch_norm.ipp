// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's layers call the operator `batch_norm` and no virtual function, so it is caught there:
// at a dispatch key that stands above autograd and that nothing but this scope switches on.
#include <accel/engine/sync_batch_norm.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <utility>
#include <vector>

namespace accel {
namespace {

constexpr auto key = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Of the innermost scope.
thread_local const Communicator* current = nullptr;
thread_local bool current_training = false;

/// All dims but the channels' (dim 1).
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

/// A vector of the channels, as the input's shape has them.
at::Tensor along_channels(const at::Tensor& vector, const at::Tensor& input) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = vector.numel();
  return vector.view(sizes);
}

struct Statistics {
  at::Tensor mean, variance;  ///< of each channel, biased
  double count;               ///< rows of all ranks
};

/// Of means and squared deviations of parts, those of the whole (Chan, Golub, LeVeque 1979).
Statistics statistics_of_all(const at::Tensor& values, const Communicator& communicator) {
  const auto channels = values.size(1);
  const auto dims = reduced_dims(values);
  const auto rows = channels == 0 ? 0 : values.numel() / channels;
  auto mean = at::zeros({channels}, values.options());
  auto deviations = at::zeros({channels}, values.options());
  if (rows > 0) {
    mean = values.mean(dims);
    deviations = (values - along_channels(mean, values)).square_().sum(dims);
  }
  const auto count = at::full({1}, static_cast<double>(rows), values.options());
  const auto all = communicator.all_gather(at::cat({mean, deviations, count}).unsqueeze(0));
  const auto means = all.slice(1, 0, channels), counts = all.slice(1, 2 * channels);
  const auto total = counts.sum();
  const auto number = total.item<double>();
  if (number == 0) return {mean, deviations, 0};
  mean = (means * counts).sum(0) / total;
  deviations =
      all.slice(1, channels, 2 * channels).sum(0) + ((means - mean).square() * counts).sum(0);
  return {mean, deviations / total, number};
}

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& running_mean,
                            const std::optional<at::Tensor>& running_var, double momentum,
                            double epsilon) {
    const auto& communicator = *current;
    const auto wide = at::promote_types(input.scalar_type(), at::kFloat);
    const auto values = input.to(wide);
    const auto [mean, variance, count] = statistics_of_all(values, communicator);
    if (running_mean && running_var && count > 0) {
      running_mean->mul_(1 - momentum).add_(mean.to(running_mean->scalar_type()), momentum);
      const double unbiased = count > 1 ? count / (count - 1) : 1.0;
      running_var->mul_(1 - momentum)
          .add_((variance * unbiased).to(running_var->scalar_type()), momentum);
    }
    const auto inverse = (variance + epsilon).rsqrt();
    auto output = (values - along_channels(mean, values)) * along_channels(inverse, values);
    if (weight) output = output * along_channels(weight->to(wide), values);
    if (bias) output = output + along_channels(bias->to(wide), values);
    context->save_for_backward({input, mean, inverse, weight ? *weight : at::Tensor()});
    context->saved_data["count"] = count;
    context->saved_data["communicator"] =
        c10::IValue::make_capsule(c10::make_intrusive<Shared>(communicator));
    context->saved_data["has_bias"] = bias.has_value();
    return output.to(input.scalar_type());
  }

  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &mean = saved[1], &inverse = saved[2], &weight = saved[3];
    const auto shared =
        c10::static_intrusive_pointer_cast<Shared>(context->saved_data["communicator"].toCapsule());
    const double count = context->saved_data["count"].toDouble();
    const auto dims = reduced_dims(input);
    const auto wide = mean.scalar_type();
    const auto gradient = gradients[0].to(wide);
    const auto normal =
        (input.to(wide) - along_channels(mean, input)) * along_channels(inverse, input);
    // Weight and bias get this rank's sums: data-parallel training adds them over the ranks.
    const auto of_bias = gradient.sum(dims), of_weight = (gradient * normal).sum(dims);
    const auto sums =
        shared->communicator.all_reduce(at::stack({of_bias, of_weight}), Reduction::sum);
    auto of_input = gradient;
    if (count > 0)
      of_input = gradient - along_channels(sums[0] / count, input) -
                 normal * along_channels(sums[1] / count, input);
    of_input =
        of_input * along_channels(weight.defined() ? inverse * weight.to(wide) : inverse, input);
    return {of_input.to(input.scalar_type()),
            weight.defined() ? of_weight.to(weight.scalar_type()) : at::Tensor(),
            context->saved_data["has_bias"].toBool()
                ? of_bias.to(weight.defined() ? weight.scalar_type() : wide)
                : at::Tensor(),
            {},
            {},
            {},
            {}};
  }

 private:
  /// The communicator of a forward, for its backward.
  struct Shared : torch::CustomClassHolder {
    explicit Shared(Communicator given) : communicator(std::move(given)) {}
    Communicator communicator;
  };
};

at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double epsilon, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard once(key);
  // With running statistics the operator's `training` is the layer's own; without, it is always true.
  const bool has_statistics = running_mean && running_mean->defined();
  const bool in_training = training && (has_statistics || current_training);
  if (!in_training || current == nullptr || current->size() == 1)
    return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum,
                          epsilon, cudnn_enabled);
  if (input.dim() < 2)
    detail::fail(ErrorCategory::usage,
                 "accel: rank {}: batch normalization takes a batch of at least 2 dims, and got {}",
                 current->rank(), input.dim());
  const auto given = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? tensor : std::optional<at::Tensor>();
  };
  // A custom function takes no undefined tensor, only none.
  return SyncBatchNorm::apply(input, given(weight), given(bias), given(running_mean),
                              given(running_var), momentum, epsilon);
}

/// Instance normalization calls batch_norm with the samples as channels: those of this rank.
at::Tensor instance_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                         const std::optional<at::Tensor>& bias,
                         const std::optional<at::Tensor>& running_mean,
                         const std::optional<at::Tensor>& running_var, bool use_input_stats,
                         double momentum, double epsilon, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard local(key);
  return at::instance_norm(input, weight, bias, running_mean, running_var, use_input_stats,
                           momentum, epsilon, cudnn_enabled);
}

/// Puts the two operators at their key, and lets every other pass by. Without a scope nothing comes
/// here.
void register_once() {
  static const auto registered = [] {
    auto all = std::make_unique<torch::Library>(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFallthrough());
    auto own =
        std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    own->impl("batch_norm", TORCH_FN(batch_norm));
    own->impl("instance_norm", TORCH_FN(instance_norm));
    return std::pair(std::move(all), std::move(own));
  }();
  (void)registered;
}

}  // namespace

SyncBatchNormScope::SyncBatchNormScope(const Communicator& communicator, bool training)
    : outer_(current), outer_training_(current_training) {
  register_once();
  current = &communicator;
  current_training = training;
  included_.emplace(key);
}

SyncBatchNormScope::~SyncBatchNormScope() {
  current = outer_;
  current_training = outer_training_;
}

}  // namespace accel
