// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The network only moves bytes: ranks reduce what they receive with the kernels of shared memory, so
// that dtypes, 16-bit sums and the order are the same between hosts as inside them.
#include <accel/comm/hierarchical_backend.hpp>

#include <accel/comm/connection.hpp>
#include <accel/comm/shm_kernels.hpp>
#include <accel/comm/shm_tensors.hpp>
#include <accel/comm/shm_work.hpp>
#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

namespace accel {

using detail::cause_of;
using detail::combine_of;
using detail::fail;
using detail::FlatTensor;
using detail::one_for_each;
using detail::only;
using detail::require_alike;
using detail::require_as_many;
using detail::require_sendable;
using detail::ShmCall;
using std::chrono::milliseconds;
using Use = detail::FlatTensor::Use;

namespace {

at::Tensor bytes_of_row(const at::Tensor& row) { return row.view(at::kByte); }

/// The options of an operation of the two groups, which the caller waits for at once.
template <class Options>
Options at_once(milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  options.asyncOp = false;
  return options;
}

}  // namespace

HierarchicalBackend::HierarchicalBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         detail::HostLayout layout, const Network& network,
                                         c10::intrusive_ptr<ShmBackend::Options> options)
    : Backend(rank, layout.size()),
      layout_(std::move(layout)),
      host_(layout_.host[static_cast<std::size_t>(rank)]),
      place_(layout_.place[static_cast<std::size_t>(rank)]),
      options_(std::move(options)),
      queue_(std::make_shared<detail::ShmQueue>()) {
  const auto part = [&](const std::string& name) {
    return c10::make_intrusive<c10d::PrefixStore>(name, store);
  };
  const auto& mates = layout_.ranks[static_cast<std::size_t>(host_)];
  if (mates.size() > 1)
    inside_ = c10::make_intrusive<ShmBackend>(part(fmt::format("host/{}", host_)), place_,
                                              static_cast<int>(mates.size()),
                                              c10::make_intrusive<ShmBackend::Options>(*options_));
  if (place_ < layout_.columns())
    across_ = network(part(fmt::format("place/{}", place_)), host_, layout_.hosts());
  network_ = network(part("all"), rank, layout_.size());
  setTimeout(options_->timeout);
}

HierarchicalBackend::~HierarchicalBackend() {
  if (inside_) inside_->interrupt();
  queue_->close();
}

void HierarchicalBackend::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  if (inside_) inside_->setTimeout(timeout);
  if (across_) across_->setTimeout(timeout);
  network_->setTimeout(timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::start(const char* what, c10d::OpType type,
                                                        Tensors results, bool is_async,
                                                        std::function<void()> stages) {
  const auto number = ++started_;
  auto work = c10::make_intrusive<detail::ShmWork>(rank_, type, std::move(results));
  const auto job = [this, what, number, stages = std::move(stages)] {
    if (!failure_.empty())
      fail(ErrorCategory::collective, "accel: rank {} of {}: {} after an operation that failed: {}",
           rank_, size_, what, failure_);
    try {
      stages();
    } catch (const std::exception& error) {
      failure_ = fmt::format("{}, operation {} of the group: {}", what, number, cause_of(error));
      // The others wait for this rank's next stage: tell those of the host why, and close what leads
      // to the other hosts, which they notice.
      if (inside_) inside_->stop(failure_);
      across_.reset();
      fail(ErrorCategory::collective, "accel: rank {} of {}: {}", rank_, size_, failure_);
    }
  };
  queue_->submit(work, job, is_async);
  return work;
}

void HierarchicalBackend::wait_inside(const WorkPtr& work) const {
  try {
    work->wait();
  } catch (const std::exception& error) {
    fail(ErrorCategory::collective, "inside host {} of {} (ranks {{{}}}): {}", host_,
         layout_.hosts(), fmt::join(layout_.ranks[static_cast<std::size_t>(host_)], ", "),
         cause_of(error));
  }
}

void HierarchicalBackend::wait_across(const WorkPtr& work) const {
  try {
    work->wait();
  } catch (const std::exception& error) {
    std::vector<int> column;
    for (const auto& ranks : layout_.ranks)
      column.push_back(ranks[static_cast<std::size_t>(place_)]);
    fail(ErrorCategory::collective,
         "over the network between ranks {{{}}}, one a host; one of them may have ended, or called "
         "another operation: {}",
         fmt::join(column, ", "), cause_of(error));
  }
}

/// What the ranks of a place reduce, and spread on their hosts. Empty for the last ones of a row with
/// fewer elements than places.
at::Tensor HierarchicalBackend::share_of(const at::Tensor& row, int place) const {
  const auto columns = static_cast<int64_t>(layout_.columns());
  const auto share = (row.numel() + columns - 1) / columns;
  const auto begin = std::min(row.numel(), share * place);
  return row.slice(0, begin, std::min(row.numel(), begin + share));
}

void HierarchicalBackend::spread_inside(const at::Tensor& row, milliseconds timeout) const {
  if (!inside_) return;
  auto options = at_once<c10d::BroadcastOptions>(timeout);
  for (int place = 0; place < layout_.columns(); ++place) {
    Tensors share{share_of(row, place)};
    options.rootRank = place;
    if (share[0].numel() > 0) wait_inside(inside_->broadcast(share, options));
  }
}

void HierarchicalBackend::reduce_inside(at::Tensor row, const c10d::ReduceOp& op,
                                        milliseconds timeout) const {
  if (!inside_) return;
  auto options = at_once<c10d::AllreduceOptions>(timeout);
  // Sums of 16 bits may be too large where their average is not. Hosts of unlike size weigh
  // differently, so there the sums are divided at the end.
  const bool divides_at_end = op == c10d::ReduceOp::AVG && !layout_.is_even();
  options.reduceOp = divides_at_end ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
  Tensors rows{std::move(row)};
  wait_inside(inside_->allreduce(rows, options));
}

/// Sends `pieces`, a row of one piece for each host, and reduces into `mine` what comes for this host,
/// in the order of the hosts.
void HierarchicalBackend::exchange_and_reduce(const at::Tensor& mine, const at::Tensor& pieces,
                                              const c10d::ReduceOp& op,
                                              milliseconds timeout) const {
  auto received = at::empty_like(pieces);
  auto sent_bytes = bytes_of_row(pieces), received_bytes = bytes_of_row(received);
  std::vector<int64_t> equal;
  wait_across(across_->alltoall_base(received_bytes, sent_bytes, equal, equal,
                                     at_once<c10d::AllToAllOptions>(timeout)));
  std::vector<const std::byte*> inputs;
  for (int host = 0; host < layout_.hosts(); ++host)
    inputs.push_back(static_cast<const std::byte*>(received.const_data_ptr()) +
                     static_cast<std::size_t>(host) * mine.nbytes());
  const auto combine = combine_of({"reduction", rank_}, op, mine.scalar_type());
  // Hosts of one size have averaged inside.
  const auto divisor = layout_.is_even() ? layout_.hosts() : size_;
  detail::reduce_function(detail::element_of(mine.scalar_type()), combine)(
      static_cast<std::byte*>(mine.mutable_data_ptr()), inputs,
      static_cast<std::size_t>(mine.numel()), static_cast<std::size_t>(divisor));
}

/// All-reduce between the hosts: each gets a piece of every host, reduces it, and gives it to all.
void HierarchicalBackend::reduce_across(const at::Tensor& row, const c10d::ReduceOp& op,
                                        milliseconds timeout) const {
  const int64_t hosts = layout_.hosts();
  const auto count = row.numel();
  if (!across_ || count == 0) return;
  const auto piece = (count + hosts - 1) / hosts;
  auto pieces = at::empty({hosts * piece}, row.options());
  pieces.narrow(0, 0, count).copy_(row);
  pieces.slice(0, count).zero_();
  const auto mine = at::empty({piece}, row.options());
  exchange_and_reduce(mine, pieces, op, timeout);
  auto all_bytes = bytes_of_row(pieces), mine_bytes = bytes_of_row(mine);
  wait_across(
      across_->_allgather_base(all_bytes, mine_bytes, at_once<c10d::AllgatherOptions>(timeout)));
  row.copy_(pieces.narrow(0, 0, count));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allreduce(Tensors& tensors,
                                                            const c10d::AllreduceOptions& options) {
  const ShmCall call{"all_reduce", rank_};
  for (const auto& tensor : tensors) {
    require_sendable(call, tensor, true);
    (void)combine_of(call, options.reduceOp, tensor.scalar_type());
  }
  return start(call.name, c10d::OpType::ALLREDUCE, tensors, options.asyncOp,
               [this, tensors, op = options.reduceOp, timeout = options.timeout] {
                 for (const auto& tensor : tensors) {
                   FlatTensor values(tensor, Use::change);
                   const auto row = values.row();
                   reduce_inside(row, op, timeout);
                   reduce_across(share_of(row, place_), op, timeout);
                   spread_inside(row, timeout);
                   values.write_back();
                 }
               });
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& options) {
  const ShmCall call{"broadcast", rank_};
  if (options.rootRank < 0 || options.rootRank >= size_)
    fail(ErrorCategory::usage, "accel: rank {}: {} with rank {}, and the ranks are 0 to {}", rank_,
         call.name, options.rootRank, size_ - 1);
  for (const auto& tensor : tensors) require_sendable(call, tensor, options.rootRank != rank_);
  const auto root = static_cast<std::size_t>(options.rootRank);
  return start(call.name, c10d::OpType::BROADCAST, tensors, options.asyncOp,
               [this, tensors, root, timeout = options.timeout] {
                 const bool is_here = host_ == layout_.host[root];
                 const bool is_root = rank_ == static_cast<int>(root);
                 for (const auto& tensor : tensors) {
                   FlatTensor values(tensor, is_root ? Use::read : Use::write);
                   const auto row = values.row();
                   auto within = at_once<c10d::BroadcastOptions>(timeout);
                   within.rootRank = layout_.place[root];
                   Tensors rows{row};
                   if (is_here && inside_) wait_inside(inside_->broadcast(rows, within));
                   Tensors share{bytes_of_row(share_of(row, place_))};
                   auto between = at_once<c10d::BroadcastOptions>(timeout);
                   between.rootRank = layout_.host[root];
                   if (across_ && share[0].numel() > 0)
                     wait_across(across_->broadcast(share, between));
                   if (!is_here) spread_inside(row, timeout);
                   if (!is_root) values.write_back();
                 }
               });
}

/// `input` of every rank, in the world's order. Between the hosts first, so that each value crosses
/// the network once a host. Hosts of one size.
void HierarchicalBackend::all_gather(const at::Tensor& output, const at::Tensor& input,
                                     milliseconds timeout) const {
  const auto hosts = static_cast<int64_t>(layout_.hosts());
  const auto places = static_cast<int64_t>(layout_.columns());
  if (input.numel() == 0) return;
  const auto options = at_once<c10d::AllgatherOptions>(timeout);
  const auto mine = FlatTensor(input, Use::read).row();
  auto column = at::empty({hosts, mine.numel()}, mine.options());
  auto all = at::empty({places, hosts, mine.numel()}, mine.options());
  auto mine_bytes = bytes_of_row(mine), column_bytes = bytes_of_row(column.view(-1));
  wait_across(across_->_allgather_base(column_bytes, mine_bytes, options));
  auto all_row = all.view(-1), column_row = column.view(-1);
  if (inside_)
    wait_inside(inside_->_allgather_base(all_row, column_row, options));
  else
    all_row.copy_(column_row);
  FlatTensor values(output, Use::write);
  const auto by_rank = values.row().view({size_, mine.numel()});
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    by_rank[rank].copy_(all[layout_.place[index]][layout_.host[index]]);
  }
  values.write_back();
}

HierarchicalBackend::WorkPtr HierarchicalBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (!layout_.is_even())
    return network_->allgather_into_tensor_coalesced(outputs, inputs, options);
  const ShmCall call{"all_gather_into_tensor", rank_};
  require_as_many(call, inputs, outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_sendable(call, inputs[i], false);
    require_sendable(call, outputs[i], true);
    require_alike(call, inputs[i], outputs[i], size_);
  }
  return start(call.name, c10d::OpType::_ALLGATHER_BASE, outputs, options.asyncOp,
               [this, outputs, inputs, timeout = options.timeout] {
                 for (std::size_t i = 0; i < inputs.size(); ++i)
                   all_gather(outputs[i], inputs[i], timeout);
               });
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allgather(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  if (!layout_.is_even()) return network_->allgather(outputs, inputs, options);
  const ShmCall call{"all_gather", rank_};
  const auto& input = only(call, inputs);
  const auto& list = one_for_each(call, outputs, size_);
  require_sendable(call, input, false);
  for (const auto& output : list) {
    require_sendable(call, output, true);
    require_alike(call, input, output);
  }
  detail::require_apart(call, list);
  return start(call.name, c10d::OpType::ALLGATHER, list, options.asyncOp,
               [this, list, input, timeout = options.timeout] {
                 const auto all = at::empty({size_, input.numel()}, input.options());
                 all_gather(all, input, timeout);
                 for (int rank = 0; rank < size_; ++rank) {
                   const auto& output = list[static_cast<std::size_t>(rank)];
                   output.copy_(all[rank].view(output.sizes()));
                 }
               });
}

/// Inside the hosts first: each rank gets what its place needs of all hosts. Hosts of one size.
void HierarchicalBackend::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                         const c10d::ReduceOp& op, milliseconds timeout) const {
  const auto hosts = static_cast<int64_t>(layout_.hosts());
  const auto places = static_cast<int64_t>(layout_.columns());
  const auto count = output.numel();
  if (count == 0) return;
  const auto by_rank = FlatTensor(input, Use::read).row().view({size_, count});
  auto all = at::empty({places, hosts, count}, by_rank.options());
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    all[layout_.place[index]][layout_.host[index]].copy_(by_rank[rank]);
  }
  auto all_row = all.view(-1);
  auto column = inside_ ? at::empty({hosts * count}, by_rank.options()) : all_row;
  if (inside_) {
    auto options = at_once<c10d::ReduceScatterOptions>(timeout);
    options.reduceOp = op;
    wait_inside(inside_->_reduce_scatter_base(column, all_row, options));
  }
  FlatTensor values(output, Use::write);
  exchange_and_reduce(values.row(), column, op, timeout);
  values.write_back();
}

HierarchicalBackend::WorkPtr HierarchicalBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  if (!layout_.is_even())
    return network_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  const ShmCall call{"reduce_scatter_tensor", rank_};
  require_as_many(call, inputs, outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_sendable(call, inputs[i], false);
    require_sendable(call, outputs[i], true);
    require_alike(call, outputs[i], inputs[i], size_);
    (void)combine_of(call, options.reduceOp, outputs[i].scalar_type());
  }
  return start(call.name, c10d::OpType::_REDUCE_SCATTER_BASE, outputs, options.asyncOp,
               [this, outputs, inputs, op = options.reduceOp, timeout = options.timeout] {
                 for (std::size_t i = 0; i < inputs.size(); ++i)
                   reduce_scatter(outputs[i], inputs[i], op, timeout);
               });
}

HierarchicalBackend::WorkPtr HierarchicalBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  if (!layout_.is_even()) return network_->reduce_scatter(outputs, inputs, options);
  const ShmCall call{"reduce_scatter", rank_};
  const auto& output = only(call, outputs);
  const auto& list = one_for_each(call, inputs, size_);
  require_sendable(call, output, true);
  for (const auto& input : list) {
    require_sendable(call, input, false);
    require_alike(call, output, input);
  }
  (void)combine_of(call, options.reduceOp, output.scalar_type());
  return start(call.name, c10d::OpType::REDUCE_SCATTER, outputs, options.asyncOp,
               [this, output, list, op = options.reduceOp, timeout = options.timeout] {
                 Tensors rows;
                 for (const auto& input : list) rows.push_back(FlatTensor(input, Use::read).row());
                 reduce_scatter(output, at::cat(rows), op, timeout);
               });
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return network_->allgather_coalesced(outputs, inputs, options);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& options) {
  return network_->reduce(tensors, options);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::gather(std::vector<Tensors>& outputs,
                                                         Tensors& inputs,
                                                         const c10d::GatherOptions& options) {
  return network_->gather(outputs, inputs, options);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::scatter(Tensors& outputs,
                                                          std::vector<Tensors>& inputs,
                                                          const c10d::ScatterOptions& options) {
  return network_->scatter(outputs, inputs, options);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  return network_->alltoall_base(output, input, output_splits, input_splits, options);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& options) {
  return network_->alltoall(outputs, inputs, options);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::send(Tensors& tensors, int to, int tag) {
  return network_->send(tensors, to, tag);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::recv(Tensors& tensors, int from, int tag) {
  return network_->recv(tensors, from, tag);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::recvAnysource(Tensors& tensors, int tag) {
  return network_->recvAnysource(tensors, tag);
}
HierarchicalBackend::WorkPtr HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  return network_->barrier(options);
}
void HierarchicalBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                           bool wait_all_ranks) {
  network_->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace accel
