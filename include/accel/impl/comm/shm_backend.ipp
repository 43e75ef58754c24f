// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Each operation checks what it is given in the caller's thread, and leaves a job in the queue that
// lays the tensors out and calls the ring.
#include <accel/comm/shm_backend.hpp>

#include <accel/comm/connection.hpp>
#include <accel/comm/shm_tensors.hpp>
#include <accel/comm/shm_work.hpp>
#include <accel/detail/error.hpp>

#include <ATen/ATen.h>

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>

namespace accel {

using detail::bytes_of;
using detail::combine_of;
using detail::fail;
using detail::FlatTensor;
using detail::one_for_each;
using detail::only;
using detail::require_alike;
using detail::require_apart;
using detail::require_as_many;
using detail::require_sendable;
using detail::ShmCall;
using detail::ShmRing;
using detail::text_of;
using Use = detail::FlatTensor::Use;
using std::chrono::milliseconds;

namespace {

std::vector<FlatTensor> flat(const std::vector<at::Tensor>& tensors, Use use) {
  std::vector<FlatTensor> all;
  for (const auto& tensor : tensors) all.emplace_back(tensor, use);
  return all;
}
std::vector<std::byte*> places(const std::vector<FlatTensor>& tensors) {
  std::vector<std::byte*> all;
  for (const auto& tensor : tensors) all.push_back(tensor.data());
  return all;
}
/// A tensor cut into one part a rank.
std::vector<std::byte*> parts(const FlatTensor& whole, int size) {
  std::vector<std::byte*> all;
  for (int rank = 0; rank < size; ++rank)
    all.push_back(whole.data() +
                  whole.bytes() / static_cast<std::size_t>(size) * static_cast<std::size_t>(rank));
  return all;
}
std::vector<const std::byte*> read_only(const std::vector<std::byte*>& all) {
  return {all.begin(), all.end()};
}

/// Goes on with a copy of what is read where something that is written lies over it. written[own] may
/// be the same place: a piece of it is written when it has been read.
void keep_apart(FlatTensor& read, std::size_t own, const std::vector<std::byte*>& written,
                std::size_t bytes) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    const bool same = read.data() == written[i];
    if (bytes > 0 && (same ? i != own : read.is_entangled_with(written[i], bytes)))
      return read.detach();
  }
}

}  // namespace

ShmBackend::Options::Options(milliseconds startup, milliseconds collective)
    : c10d::Backend::Options("accel_shm", collective), startup_timeout(startup) {
  const auto pages = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::size_t enough = std::size_t{16} << 30;
  ring.arena_bytes = std::min(pages * page, enough);
}

ShmBackend::ShmBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)) {
  const auto deadline = std::chrono::steady_clock::now() + options_->startup_timeout;
  const auto ring_bytes = ShmRing::bytes_needed(size, options_->ring);
  const auto bytes = ring_bytes + detail::ShmMailbox::bytes_needed(size);
  const std::string key = "shared_memory";
  std::unique_ptr<detail::SharedSegment> segment;
  if (rank == 0) {
    const auto memory = detail::make_shared_memory(bytes);
    detail::DescriptorServer server;
    store->set(key, bytes_of(server.name()));
    segment = std::make_unique<detail::SharedSegment>(memory, bytes);
    server.serve(memory, size - 1, deadline);
  } else {
    store->wait({key}, options_->startup_timeout);
    const auto memory = detail::fetch_descriptor(text_of(store->get(key)), deadline);
    segment = std::make_unique<detail::SharedSegment>(memory, bytes);
  }
  ring_ = std::make_unique<ShmRing>(segment->data(), rank, size, options_->ring);
  ring_->barrier(options_->startup_timeout);
  ring_->peers().watch();
  mailbox_ = std::make_unique<detail::ShmMailbox>(segment->data() + ring_bytes, ring_->peers());
  memory_ = std::make_shared<Memory>(std::move(*segment), ring_->arena());
  queue_ = std::make_shared<detail::ShmQueue>();
}

ShmBackend::~ShmBackend() {
  interrupt();
  queue_->close();
  mailbox_.reset();
  ring_->peers().leave();
}

c10::DataPtr ShmBackend::allocate(std::size_t bytes) {
  struct Lease {
    std::shared_ptr<Memory> memory;
    std::byte* block;
  };
  auto* block = memory_->arena.allocate(bytes);
  if (!block) return {};
  const auto end = [](void* context) {
    const std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
    lease->memory->arena.release(lease->block);
  };
  return {block, new Lease{memory_, block}, end, c10::Device(c10::kCPU)};
}

at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto bytes = static_cast<std::size_t>(std::max(0L, size)) * options.dtype().itemsize();
  auto place = allocate(bytes);
  if (!place)
    fail(ErrorCategory::usage,
         "accel: rank {}: the memory that the ranks share has no room for {} bytes ({} of {} are "
         "taken); allocate an ordinary tensor",
         rank_, bytes, memory_->arena.used(), options_->ring.arena_bytes);
  const c10::Storage storage(c10::Storage::use_byte_size_t{}, bytes, std::move(place));
  return at::empty({0}, options).set_(storage, 0, {size}, {1});
}

milliseconds ShmBackend::timeout_or_default(milliseconds asked) const {
  return asked > kNoTimeout ? asked : options_->timeout;
}

void ShmBackend::check_rank(const char* what, int64_t rank) const {
  if (rank < 0 || rank >= size_)
    fail(ErrorCategory::usage, "accel: rank {}: {} with rank {}, and the ranks are 0 to {}", rank_,
         what, rank, size_ - 1);
}

ShmBackend::WorkPtr ShmBackend::start(c10d::OpType type, Tensors results, bool is_async, Job job) {
  ++started_;
  auto work = c10::make_intrusive<detail::ShmWork>(rank_, type, std::move(results));
  queue_->submit(work, std::move(job), is_async);
  return work;
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const ShmCall call{"broadcast", rank_};
  check_rank(call.name, options.rootRank);
  for (const auto& tensor : tensors) require_sendable(call, tensor, options.rootRank != rank_);
  const auto root = static_cast<int>(options.rootRank);
  return start(c10d::OpType::BROADCAST, tensors, options.asyncOp,
               [this, tensors, root, timeout = timeout_or_default(options.timeout)] {
                 for (const auto& tensor : tensors) {
                   FlatTensor row(tensor, rank_ == root ? Use::read : Use::write);
                   ring_->broadcast(row.data(), row.count(), row.element(), root, timeout);
                   if (rank_ != root) row.write_back();
                 }
               });
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const ShmCall call{"all_reduce", rank_};
  std::vector<detail::Combine> combines;
  for (const auto& tensor : tensors) {
    require_sendable(call, tensor, true);
    combines.push_back(combine_of(call, options.reduceOp, tensor.scalar_type()));
  }
  return start(c10d::OpType::ALLREDUCE, tensors, options.asyncOp,
               [this, tensors, combines, timeout = timeout_or_default(options.timeout)] {
                 for (std::size_t i = 0; i < tensors.size(); ++i) {
                   FlatTensor row(tensors[i], Use::change);
                   ring_->all_reduce(row.data(), row.count(), row.element(), combines[i], timeout);
                   row.write_back();
                 }
               });
}

ShmBackend::WorkPtr ShmBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const ShmCall call{"reduce", rank_};
  check_rank(call.name, options.rootRank);
  const auto tensor = only(call, tensors);
  const auto root = static_cast<int>(options.rootRank);
  require_sendable(call, tensor, rank_ == root);
  const auto combine = combine_of(call, options.reduceOp, tensor.scalar_type());
  return start(c10d::OpType::REDUCE, tensors, options.asyncOp,
               [this, tensor, combine, root, timeout = timeout_or_default(options.timeout)] {
                 FlatTensor row(tensor, rank_ == root ? Use::change : Use::read);
                 ring_->reduce(row.data(), row.count(), row.element(), combine, root, timeout);
                 if (rank_ == root) row.write_back();
               });
}

ShmBackend::Job ShmBackend::all_gather_job(const char* what, Tensors outputs,
                                           const at::Tensor& input, milliseconds timeout) {
  const ShmCall call{what, rank_};
  require_sendable(call, input, false);
  for (const auto& output : outputs) {
    require_sendable(call, output, true);
    require_alike(call, input, output, outputs.size() == 1 ? size_ : 1);
  }
  require_apart(call, outputs);
  // One output for all ranks, or one for each.
  return [this, outputs = std::move(outputs), input, timeout] {
    FlatTensor row(input, Use::read);
    auto rows = flat(outputs, Use::write);
    const auto written = rows.size() == 1 ? parts(rows[0], size_) : places(rows);
    keep_apart(row, static_cast<std::size_t>(rank_), written, row.bytes());
    ring_->all_gather(written, row.data(), row.count(), row.element(), timeout);
    for (auto& each : rows) each.write_back();
  };
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const ShmCall call{"all_gather", rank_};
  const auto& list = one_for_each(call, outputs, size_);
  return start(
      c10d::OpType::ALLGATHER, list, options.asyncOp,
      all_gather_job(call.name, list, only(call, inputs), timeout_or_default(options.timeout)));
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  return start(c10d::OpType::_ALLGATHER_BASE, {output}, options.asyncOp,
               all_gather_job("all_gather_into_tensor", {output}, input,
                              timeout_or_default(options.timeout)));
}

ShmBackend::WorkPtr ShmBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  const char* what = "all_gather_coalesced";
  // outputs[rank][i] is rank's inputs[i].
  if (outputs.size() != static_cast<std::size_t>(size_) ||
      std::ranges::any_of(outputs, [&](const auto& each) { return each.size() != inputs.size(); }))
    fail(ErrorCategory::usage,
         "accel: rank {}: {} of {} tensors takes {} lists of as many, one for each rank", rank_,
         what, inputs.size(), size_);
  std::vector<Job> jobs;
  Tensors results;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors list;
    for (const auto& of_rank : outputs) list.push_back(of_rank[i]);
    results.insert(results.end(), list.begin(), list.end());
    jobs.push_back(
        all_gather_job(what, std::move(list), inputs[i], timeout_or_default(options.timeout)));
  }
  return start(c10d::OpType::ALLGATHER_COALESCED, results, options.asyncOp, [jobs] {
    for (const auto& job : jobs) job();
  });
}

ShmBackend::WorkPtr ShmBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const char* what = "all_gather_into_tensor_coalesced";
  require_as_many({what, rank_}, inputs, outputs);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    jobs.push_back(
        all_gather_job(what, {outputs[i]}, inputs[i], timeout_or_default(options.timeout)));
  return start(c10d::OpType::COALESCED, outputs, options.asyncOp, [jobs] {
    for (const auto& job : jobs) job();
  });
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  const ShmCall call{"gather", rank_};
  check_rank(call.name, options.rootRank);
  const auto root = static_cast<int>(options.rootRank);
  const auto input = only(call, inputs);
  require_sendable(call, input, false);
  const auto list = rank_ == root ? one_for_each(call, outputs, size_) : Tensors{};
  for (const auto& output : list) {
    require_sendable(call, output, true);
    require_alike(call, input, output);
  }
  require_apart(call, list);
  return start(c10d::OpType::GATHER, list, options.asyncOp,
               [this, list, input, root, timeout = timeout_or_default(options.timeout)] {
                 FlatTensor row(input, Use::read);
                 auto rows = flat(list, Use::write);
                 const auto written = places(rows);
                 keep_apart(row, static_cast<std::size_t>(rank_), written, row.bytes());
                 ring_->gather(written, row.data(), row.count(), row.element(), root, timeout);
                 for (auto& each : rows) each.write_back();
               });
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  const ShmCall call{"scatter", rank_};
  check_rank(call.name, options.rootRank);
  const auto root = static_cast<int>(options.rootRank);
  const auto output = only(call, outputs);
  require_sendable(call, output, true);
  const auto list = rank_ == root ? one_for_each(call, inputs, size_) : Tensors{};
  for (const auto& input : list) {
    require_sendable(call, input, false);
    require_alike(call, output, input);
  }
  return start(c10d::OpType::SCATTER, outputs, options.asyncOp,
               [this, list, output, root, timeout = timeout_or_default(options.timeout)] {
                 FlatTensor row(output, Use::write);
                 auto rows = flat(list, Use::read);
                 // Only what the root keeps may lie in the output.
                 for (std::size_t to = 0; to < rows.size(); ++to)
                   keep_apart(rows[to], to == static_cast<std::size_t>(root) ? 0 : 1, {row.data()},
                              row.bytes());
                 ring_->scatter(row.data(), read_only(places(rows)), row.count(), row.element(),
                                root, timeout);
                 row.write_back();
               });
}

ShmBackend::Job ShmBackend::reduce_scatter_job(const char* what, const at::Tensor& output,
                                               Tensors inputs, const c10d::ReduceOp& op,
                                               milliseconds timeout) {
  const ShmCall call{what, rank_};
  require_sendable(call, output, true);
  for (const auto& input : inputs) {
    require_sendable(call, input, false);
    require_alike(call, output, input, inputs.size() == 1 ? size_ : 1);
  }
  const auto combine = combine_of(call, op, output.scalar_type());
  // One input for all ranks, or one for each.
  return [this, output, inputs = std::move(inputs), combine, timeout] {
    FlatTensor row(output, Use::write);
    auto rows = flat(inputs, Use::read);
    auto read = rows.size() == 1 ? parts(rows[0], size_) : places(rows);
    // The output may be the rank's own part of the input, and nothing else of it.
    const auto self = static_cast<std::size_t>(rank_);
    for (std::size_t part = 0; part < read.size(); ++part) {
      const bool same = row.data() == read[part];
      if (row.is_entangled_with(read[part], row.bytes()) || (same && part != self)) {
        for (auto& each : rows) each.detach();
        read = rows.size() == 1 ? parts(rows[0], size_) : places(rows);
        break;
      }
    }
    ring_->reduce_scatter(row.data(), read_only(read), row.count(), row.element(), combine,
                          timeout);
    row.write_back();
  };
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  const ShmCall call{"reduce_scatter", rank_};
  return start(c10d::OpType::REDUCE_SCATTER, outputs, options.asyncOp,
               reduce_scatter_job(call.name, only(call, outputs), one_for_each(call, inputs, size_),
                                  options.reduceOp, timeout_or_default(options.timeout)));
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  return start(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, options.asyncOp,
               reduce_scatter_job("reduce_scatter_tensor", output, {input}, options.reduceOp,
                                  timeout_or_default(options.timeout)));
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const char* what = "reduce_scatter_tensor_coalesced";
  require_as_many({what, rank_}, inputs, outputs);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    jobs.push_back(reduce_scatter_job(what, outputs[i], {inputs[i]}, options.reduceOp,
                                      timeout_or_default(options.timeout)));
  return start(c10d::OpType::COALESCED, outputs, options.asyncOp, [jobs] {
    for (const auto& job : jobs) job();
  });
}

ShmBackend::Job ShmBackend::all_to_all_job(const char* what, Tensors outputs, Tensors inputs,
                                           milliseconds timeout) {
  const ShmCall call{what, rank_};
  for (const auto& output : outputs) require_sendable(call, output, true);
  for (const auto& input : inputs) require_sendable(call, input, false);
  require_apart(call, outputs);
  return [this, outputs = std::move(outputs), inputs = std::move(inputs), timeout] {
    auto written = flat(outputs, Use::write);
    auto read = flat(inputs, Use::read);
    std::vector<std::size_t> written_bytes, read_bytes;
    for (const auto& each : written) written_bytes.push_back(each.bytes());
    for (auto& each : read) {
      read_bytes.push_back(each.bytes());
      const bool shared = std::ranges::any_of(written, [&](const FlatTensor& other) {
        return each.is_entangled_with(other.data(), other.bytes()) || each.data() == other.data();
      });
      if (shared) each.detach();
    }
    ring_->all_to_all(places(written), written_bytes, read_only(places(read)), read_bytes, timeout);
    for (auto& each : written) each.write_back();
  };
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  const ShmCall call{"all_to_all", rank_};
  for (const auto* list : {&outputs, &inputs}) (void)one_for_each(call, {*list}, size_);
  return start(c10d::OpType::ALLTOALL, outputs, options.asyncOp,
               all_to_all_job(call.name, outputs, inputs, timeout_or_default(options.timeout)));
}

namespace {

/// The rows for each rank: `splits`, or equal parts where there are none.
std::vector<at::Tensor> split_rows(const ShmCall& call, const at::Tensor& tensor,
                                   std::vector<int64_t> splits, int size) {
  require_sendable(call, tensor, false);
  const auto rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty() && rows % size == 0)
    splits.assign(static_cast<std::size_t>(size), rows / size);
  const auto sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (splits.size() != static_cast<std::size_t>(size) || sum != rows ||
      std::ranges::any_of(splits, [](int64_t each) { return each < 0; }))
    fail(ErrorCategory::usage,
         "accel: rank {}: {} of {} rows over {} ranks takes split sizes that add up to them, one "
         "for "
         "each rank, or none where the rows divide evenly",
         call.rank, call.name, rows, size);
  return tensor.split_with_sizes(splits);
}

}  // namespace

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  const ShmCall call{"all_to_all_single", rank_};
  require_sendable(call, output, true);
  if (output.scalar_type() != input.scalar_type())
    fail(ErrorCategory::usage, "accel: rank {}: {} from {} to {}; give tensors of one dtype", rank_,
         call.name, c10::toString(input.scalar_type()), c10::toString(output.scalar_type()));
  const at::NoGradGuard no_grad;
  return start(c10d::OpType::ALLTOALL_BASE, {output}, options.asyncOp,
               all_to_all_job(call.name, split_rows(call, output.detach(), output_splits, size_),
                              split_rows(call, input.detach(), input_splits, size_),
                              timeout_or_default(options.timeout)));
}

ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int to, int tag) {
  const ShmCall call{"send", rank_};
  const auto tensor = only(call, tensors);
  require_sendable(call, tensor, false);
  check_rank(call.name, to);
  auto work = c10::make_intrusive<detail::ShmWork>(rank_, c10d::OpType::SEND, tensors);
  const auto row = std::make_shared<FlatTensor>(tensor, Use::read);
  mailbox_->send(to, static_cast<std::uint64_t>(tag), row->data(), row->bytes(), options_->timeout,
                 [work, row](const std::exception_ptr& failure, int) { work->complete(failure); });
  return work;
}

ShmBackend::WorkPtr ShmBackend::receive(const at::Tensor& tensor, int from, int tag) {
  require_sendable({"recv", rank_}, tensor, true);
  const bool any = from == detail::ShmMailbox::any_rank;
  auto work = c10::make_intrusive<detail::ShmWork>(
      rank_, any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV, Tensors{tensor});
  const auto row = std::make_shared<FlatTensor>(tensor, Use::write);
  mailbox_->receive(from, static_cast<std::uint64_t>(tag), row->data(), row->bytes(),
                    options_->timeout, [work, row](const std::exception_ptr& failure, int source) {
                      if (!failure) {
                        const at::NoGradGuard no_grad;
                        row->write_back();
                      }
                      work->complete(failure, source);
                    });
  return work;
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int from, int tag) {
  check_rank("recv", from);
  return receive(only({"recv", rank_}, tensors), from, tag);
}
ShmBackend::WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(only({"recv", rank_}, tensors), detail::ShmMailbox::any_rank, tag);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return start(c10d::OpType::BARRIER, {}, options.asyncOp,
               [this, timeout = timeout_or_default(options.timeout)] { ring_->barrier(timeout); });
}

void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  barrier(options)->wait();  // names who is missing, whoever asks
}

c10::intrusive_ptr<c10d::Backend> ShmBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto place = std::ranges::find(ranks, rank_);
  if (place == ranks.end()) return {};
  auto own = c10::make_intrusive<Options>(*options_);
  if (options && options->timeout > kNoTimeout) own->timeout = options->timeout;
  return c10::make_intrusive<ShmBackend>(store, static_cast<int>(place - ranks.begin()),
                                         static_cast<int>(ranks.size()), std::move(own));
}

}  // namespace accel
