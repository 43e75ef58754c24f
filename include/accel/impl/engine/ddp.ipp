// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The only file that includes c10d's reducer: its constructor changes between releases of LibTorch.
#include <accel/engine/ddp.hpp>
#include <accel/detail/error.hpp>

#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <sstream>
#include <unordered_set>

namespace accel {
namespace {

std::string line_of(const std::string& name, const at::Tensor& tensor, const char* remark) {
  return fmt::format("{} {} [{}]{}\n", name, c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), remark);
}

/// Throws on every rank if the ranks' parameters or buffers differ in number, name, dtype, shape,
/// order or in what is frozen.
void compare_modules(const Communicator& communicator,
                     const std::vector<NamedParameter>& parameters,
                     const torch::nn::Module& module) {
  std::string mine;
  for (const auto& [name, tensor] : parameters)
    mine += line_of(name, tensor, tensor.requires_grad() ? "" : " frozen");
  for (const auto& buffer : module.named_buffers())
    mine += line_of(buffer.key(), buffer.value(), " buffer");
  const auto all = communicator.all_gather_bytes(mine);
  for (int rank = 1; rank < communicator.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::string here, there;
    while (true) {
      if (!std::getline(first, here)) here = "nothing more";
      if (!std::getline(other, there)) there = "nothing more";
      if (here != there) break;
    }
    detail::fail(ErrorCategory::collective,
                 "accel: the ranks prepare different models: rank 0 has '{}' where rank {} has "
                 "'{}'. Build the same model, in the same order, on every rank (this is rank {})",
                 here, rank, there, communicator.rank());
  }
}

}  // namespace

struct DataParallel::Reducer {
  std::vector<at::Tensor> parameters;  ///< those that are trained
  std::vector<std::string> names;
  std::shared_ptr<c10d::Reducer> reducer;
};

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
                           const DdpOptions& options)
    : module_(std::move(module)),
      communicator_(std::move(communicator)),
      options_(options),
      parameters_(unique_parameters(*module_)) {
  if (communicator_.size() == 1) return;
  compare_modules(communicator_, parameters_, *module_);

  std::vector<at::Tensor> state;
  for (const auto& [name, tensor] : parameters_) state.push_back(tensor.detach());
  for (const auto& buffer : module_->buffers()) state.push_back(buffer.detach());
  communicator_.broadcast_coalesced_(state, 0);

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
  std::reverse(buckets.begin(), buckets.end());
  reducer_->reducer = std::make_shared<c10d::Reducer>(
      reducer_->parameters, buckets, communicator_.group(), sparse, options_.bucket_cap_bytes,
      options_.find_unused_parameters, /*gradient_as_bucket_view=*/true, names,
      options_.first_bucket_cap_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>{});
}

DataParallel::~DataParallel() {
  // The hooks hold on to the reducer's insides; they go before it does.
  if (reducer_ && reducer_->reducer) reducer_->reducer->remove_autograd_hooks();
}

bool DataParallel::reaches(const at::Tensor& loss) const {
  std::unordered_set<const torch::autograd::Node*> mine;
  for (const auto& [name, tensor] : parameters_)
    if (tensor.requires_grad()) mine.insert(torch::autograd::impl::grad_accumulator(tensor).get());
  std::vector<const torch::autograd::Node*> open{loss.grad_fn().get()};
  std::unordered_set<const torch::autograd::Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    const auto* node = open.back();
    open.pop_back();
    if (!node) continue;
    if (mine.contains(node)) return true;
    for (const auto& edge : node->next_edges())
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        open.push_back(edge.function.get());
  }
  return false;
}

void DataParallel::arm(const at::Tensor& loss) {
  if (!reducer_ || !reducer_->reducer) return;
  auto& reducer = *reducer_->reducer;
  try {
    reducer.prepare_for_forward();
    reducer.rebuild_buckets();
    reducer.prepare_for_backward(options_.find_unused_parameters ? std::vector<at::Tensor>{loss}
                                                                 : std::vector<at::Tensor>{});
  } catch (const c10::Error& error) {
    detail::fail(ErrorCategory::collective,
                 "accel: rank {}: the gradients of the last backward were never reduced, since it "
                 "threw or left parameters out; prepare the model again before going on. Cause: {}",
                 communicator_.rank(), error.what_without_backtrace());
  }
  ++reductions_;
}

void DataParallel::finish() {
  if (!reducer_ || !reducer_->reducer) return;
  try {
    reducer_->reducer->check_finalized();
  } catch (const std::exception&) {
    std::vector<std::string> unused;
    for (size_t i = 0; i < reducer_->parameters.size(); ++i)
      if (!reducer_->parameters[i].grad().defined()) unused.push_back(reducer_->names[i]);
    detail::fail(ErrorCategory::collective,
                 "accel: rank {}: the gradients were not reduced, since parameters took no part in "
                 "the loss{}{}. Use every parameter, freeze those that are not trained, or set "
                 "ddp.find_unused_parameters",
                 communicator_.rank(), unused.empty() ? "" : ": ", fmt::join(unused, ", "));
  }
}

void DataParallel::broadcast_buffers() {
  if (!reducer_ || !options_.broadcast_buffers) return;
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : module_->buffers()) buffers.push_back(buffer.detach());
  communicator_.broadcast_coalesced_(buffers, 0);
}

}  // namespace accel
