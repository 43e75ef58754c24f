// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The only file that includes c10d's reducer: its constructor changes between releases of LibTorch.
#include <accel/engine/ddp.hpp>

#include <accel/comm/shared_buffers.hpp>
#include <accel/detail/error.hpp>
#include <accel/engine/replica.hpp>

#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace accel {
namespace {

/// The options that ranks must have in common, a line each.
std::string lines_of(const DdpOptions& options) {
  auto lines =
      fmt::format("bucket_cap_bytes {}\nfirst_bucket_cap_bytes {}\nfind_unused_parameters {}\n"
                  "broadcast_buffers {}\ncomm_hook {}\nstatic_graph {}\nsync_batch_norm {}\n",
                  options.bucket_cap_bytes, options.first_bucket_cap_bytes,
                  options.find_unused_parameters, options.broadcast_buffers,
                  name_of(options.comm_hook), options.static_graph, options.sync_batch_norm);
  if (options.comm_hook == CommHook::power_sgd) {
    const auto& power = options.power_sgd;
    lines += fmt::format(
        "matrix_approximation_rank {}\nstart_powerSGD_iter {}\nmin_compression_rate {}\n"
        "use_error_feedback {}\nwarm_start {}\nrandom_seed {}\n",
        power.matrix_approximation_rank, power.start_powerSGD_iter, power.min_compression_rate,
        power.use_error_feedback, power.warm_start, power.random_seed);
  }
  return lines;
}

/// Sums a bucket in the type of the wire. c10d divides by the ranks itself only where there is no
/// hook.
class ReduceInType : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  ReduceInType(c10::intrusive_ptr<c10d::ProcessGroup> group, GradientWire wire)
      : CppCommHookInterface(std::move(group)), wire_(wire) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const auto& gradients = bucket.getBuffer();
    const auto type = wire_.type_for(gradients.scalar_type());
    // Divided before the sum, which a 16-bit type may not hold.
    std::vector<at::Tensor> travelling{gradients.to(type).div_(state_->getSize())};
    auto sum = state_->allreduce(travelling)->getFuture();
    if (type == gradients.scalar_type()) return sum;
    return sum->then(
        [gradients, travelling](c10::ivalue::Future& done) {
          (void)done.value();  // throws where the sum failed
          gradients.copy_(travelling[0]);
          return c10::IValue(std::vector<at::Tensor>{gradients});
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  GradientWire wire_;
};

/// Reduces a bucket by PowerSGD, and returns when it is done: what a bucket sends depends on what it
/// has received.
class ReduceByPowerSgd : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  /// `names`: of the trained parameters.
  ReduceByPowerSgd(c10::intrusive_ptr<c10d::ProcessGroup> group,
                   std::shared_ptr<PowerSgd> power_sgd, const std::vector<at::Tensor>& parameters,
                   const std::vector<std::string>& names)
      : CppCommHookInterface(std::move(group)), power_sgd_(std::move(power_sgd)) {
    for (size_t i = 0; i < parameters.size(); ++i)
      names_[parameters[i].unsafeGetTensorImpl()] = names[i];
  }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const auto sum = [this](at::Tensor& tensor) {
      std::vector<at::Tensor> tensors{tensor};
      state_->allreduce(tensors)->wait();
    };
    PowerSgd::NamedTensors gradients;
    const auto& parameters = bucket.getParameters();
    for (size_t i = 0; auto& gradient : bucket.getGradients())
      gradients.emplace_back(names_.at(parameters[i++].unsafeGetTensorImpl()), gradient);
    power_sgd_->reduce(bucket.isLast(), bucket.getBuffer(), gradients, state_->getSize(), sum);
    auto done = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        bucket.getBuffer().is_cuda() ? std::vector<c10::Device>{bucket.getBuffer().device()}
                                     : std::vector<c10::Device>{});
    done->markCompleted(c10::IValue(std::vector<at::Tensor>{bucket.getBuffer()}));
    return done;
  }

 private:
  std::shared_ptr<PowerSgd> power_sgd_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
};

/// Throws Error(usage) for an embedding whose gradients are sparse: a bucket is dense.
void require_dense_gradients(const torch::nn::Module& module, int rank) {
  for (const auto& child : module.named_modules()) {
    const auto* embedding = child.value()->as<torch::nn::Embedding>();
    const auto* bag = child.value()->as<torch::nn::EmbeddingBag>();
    const bool sparse =
        (embedding && embedding->options.sparse()) || (bag && bag->options.sparse());
    const auto& weight = embedding ? embedding->weight : bag ? bag->weight : at::Tensor();
    if (sparse && weight.requires_grad())
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: parameter {}.weight gets sparse gradients, which ddp does not "
                   "reduce; build the embedding with sparse(false), or train with sharded<...>",
                   rank, child.key());
  }
}

}  // namespace

struct DataParallel::Reducer {
  std::vector<at::Tensor> parameters;  ///< those that are trained
  std::vector<std::string> names;
  std::shared_ptr<c10d::Reducer> reducer;
  /// What c10d writes down. With find_unused_parameters it is told, unasked whether there is one,
  /// when other parameters are unused than before.
  std::shared_ptr<c10d::Logger> logger;
  bool first_of_static_graph = false;

  // The hooks hold on to the reducer's insides; they go before it does.
  ~Reducer() {
    if (reducer) reducer->remove_autograd_hooks();
  }
};

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
                           const DdpOptions& options, GradientWire wire)
    : module_(std::move(module)),
      communicator_(std::move(communicator)),
      options_(options),
      wire_(wire),
      parameters_(unique_parameters(*module_)) {
  wire_.hook = options.comm_hook;
  if (options.comm_hook == CommHook::power_sgd)
    power_sgd_ = std::make_shared<PowerSgd>(options.power_sgd);
  if (communicator_.size() == 1) return;
  detail::require_same_module(communicator_, lines_of(options_), parameters_, *module_);
  require_dense_gradients(*module_, communicator_.rank());
  detail::broadcast_module(communicator_, parameters_, *module_);
  make_reducer();
}

DataParallel::~DataParallel() = default;

void DataParallel::make_reducer() {
  reducer_.reset();  // its hooks go before others come
  reducer_ = std::make_unique<Reducer>();
  std::unordered_map<size_t, std::string> names;
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.requires_grad()) continue;
    names[reducer_->parameters.size()] = name;
    reducer_->names.push_back(name);
    reducer_->parameters.push_back(tensor);
  }
  if (reducer_->parameters.empty()) return;  // a frozen module has nothing to reduce

  const std::vector<size_t> limits{static_cast<size_t>(options_.first_bucket_cap_bytes),
                                   static_cast<size_t>(options_.bucket_cap_bytes)};
  const std::vector<bool> sparse(reducer_->parameters.size(), false);
  auto [buckets, sizes] =
      c10d::compute_bucket_assignment_by_size(reducer_->parameters, limits, sparse, {}, {});
  // Gradients become ready in about the reverse of the forward order.
  std::ranges::reverse(buckets);
  const SharedBuffers buckets_in_shared_memory(communicator_);
  reducer_->reducer = std::make_shared<c10d::Reducer>(
      reducer_->parameters, buckets, communicator_.group(), sparse, options_.bucket_cap_bytes,
      options_.find_unused_parameters, /*gradient_as_bucket_view=*/true, names,
      options_.first_bucket_cap_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>{});
  reducer_->logger = std::make_shared<c10d::Logger>(reducer_->reducer);
  reducer_->reducer->set_logger(reducer_->logger);
  if (options_.static_graph) {
    reducer_->reducer->set_static_graph();
    reducer_->first_of_static_graph = true;
  }
  if (power_sgd_)
    reducer_->reducer->register_comm_hook(std::make_unique<ReduceByPowerSgd>(
        communicator_.group(), power_sgd_, reducer_->parameters, reducer_->names));
  else if (wire_.casts())
    reducer_->reducer->register_comm_hook(
        std::make_unique<ReduceInType>(communicator_.group(), wire_));
}

bool DataParallel::is_among(const std::unordered_set<const c10::TensorImpl*>& leaves) const {
  return std::ranges::any_of(parameters_, [&](const NamedParameter& parameter) {
    return leaves.contains(parameter.second.unsafeGetTensorImpl());
  });
}

void DataParallel::arm(const at::Tensor& loss) {
  if (!reducer_) return;
  size_t trained = 0;
  bool same = true;
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.requires_grad()) continue;
    same = same && trained < reducer_->names.size() && reducer_->names[trained] == name;
    ++trained;
  }
  if (!same || trained != reducer_->names.size()) {
    detail::require_same_module(communicator_, lines_of(options_), parameters_, *module_);
    make_reducer();
  }
  if (!reducer_->reducer) return;
  if (broken_) fail_as_broken("the last backward threw");
  auto& reducer = *reducer_->reducer;
  try {
    reducer.prepare_for_forward();
    {
      const SharedBuffers buckets_in_shared_memory(communicator_);
      reducer.rebuild_buckets();
    }
    reducer.prepare_for_backward(options_.find_unused_parameters ? std::vector<at::Tensor>{loss}
                                                                 : std::vector<at::Tensor>{});
  } catch (const std::exception& error) {
    broken_ = true;
    explain(error);
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    fail_as_broken(torch_error ? torch_error->what_without_backtrace() : error.what());
  }
  // The first backward of a static graph learns it; c10d reduces at its end, when it is told to.
  if (std::exchange(reducer_->first_of_static_graph, false)) {
    loss.register_hook([reducer = reducer_->reducer](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [reducer] { reducer->delay_all_reduce(); });
    });
  }
  armed_loss_ = loss;
  ++reductions_;
}

void DataParallel::fail_as_broken(const std::string& cause) const {
  detail::fail(ErrorCategory::collective,
               "accel: rank {}: the gradients of the last backward were never reduced, since it "
               "threw or left parameters out; prepare the model again, on every rank, before going "
               "on. Cause: {}",
               communicator_.rank(), cause);
}

void DataParallel::finish() {
  if (!reducer_ || !reducer_->reducer) return;
  const auto loss = std::exchange(armed_loss_, at::Tensor());
  try {
    reducer_->reducer->check_finalized();
  } catch (const std::exception&) {
    std::vector<std::string> unused;
    const auto used = leaves_of(loss);
    for (size_t i = 0; i < reducer_->parameters.size(); ++i)
      if (!used.contains(reducer_->parameters[i].unsafeGetTensorImpl()))
        unused.push_back(reducer_->names[i]);
    const Error error(
        ErrorCategory::collective,
        fmt::format("accel: rank {}: the gradients were not reduced, since parameters took no part "
                    "in the loss{}{}. Use every parameter, freeze those that are not trained, or "
                    "set ddp.find_unused_parameters",
                    communicator_.rank(), unused.empty() ? "" : ": ", fmt::join(unused, ", ")));
    broken_ = true;
    communicator_.leave_word(error.what());
    throw error;
  }
}

void DataParallel::explain(const std::exception& failure) const {
  detail::explain_reduction(communicator_, failure);
}

at::Tensor DataParallel::zero_loss() const {
  at::Tensor sum;
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.requires_grad()) continue;
    const auto zero =
        (tensor.flatten().narrow(0, 0, std::min<int64_t>(1, tensor.numel())) * 0).sum();
    sum = sum.defined() ? sum + zero.to(sum.scalar_type()) : zero;
  }
  return sum;
}

bool DataParallel::shares_buffers() const {
  return reducer_ && options_.broadcast_buffers && !module_->buffers().empty();
}

void DataParallel::broadcast_buffers(int root) {
  if (!reducer_ || !options_.broadcast_buffers) return;
  detail::broadcast_buffers(communicator_, *module_, root);
}

}  // namespace accel
