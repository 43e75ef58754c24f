// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The only file that includes Gloo's and NCCL's headers.
#include <accel/comm/communicator.hpp>
#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#ifdef ACCEL_WITH_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <thread>

namespace accel {

using detail::fail;
using std::chrono::milliseconds;

struct Communicator::Connection {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  milliseconds timeout{};
};

namespace {

/// The key under which a rank that stops says why.
constexpr const char* last_word = "last_word";

/// What an exception says, without the C++ stack that LibTorch appends.
std::string cause_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

/// Opens the job's TCP store. Rank 0 serves it, unless the launcher's agent does.
c10::intrusive_ptr<c10d::Store> open_store(const Ranks& ranks, const CommunicatorOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(ranks.master_port);
  store.isServer = ranks.rank == 0 && !ranks.agent_store;
  store.waitWorkers = false;  // the roll call below waits, and says who is missing
  store.timeout = options.startup_timeout;
  store.multiTenant = true;  // a second accelerator of this process shares the server
  // The server closes its socket in the end; a later connection of this process needs the inherited
  // one again.
  if (store.isServer && ranks.store_fd)
    store.masterListenFd = ::fcntl(*ranks.store_fd, F_DUPFD_CLOEXEC, 0);
  try {
    c10::intrusive_ptr<c10d::Store> opened =
        c10::make_intrusive<c10d::TCPStore>(ranks.master_addr, store);
    if (ranks.agent_store)
      opened = c10::make_intrusive<c10d::PrefixStore>(
          fmt::format("/worker/attempt_{}", ranks.restart_count), opened);
    return opened;
  } catch (const std::exception& error) {
    const char* cause = store.isServer
                            ? "cannot serve the store; is the port taken? Set MASTER_PORT "
                              "(accel-launch: --main_process_port) to another, or to 0"
                            : "cannot reach the store that rank 0 serves; is rank 0 running, and "
                              "are MASTER_ADDR and MASTER_PORT the same on every rank?";
    fail(ErrorCategory::collective, "accel: rank {} of {} {} ({}:{}). Cause: {}", ranks.rank,
         ranks.size, cause, ranks.master_addr, ranks.master_port, cause_of(error));
  }
}

/// The start-up of a job, on the store: what ranks say, and the problem that ends it for all.
class RollCall {
 public:
  RollCall(c10d::Store& store, const Ranks& ranks, milliseconds timeout)
      : store_(store), ranks_(ranks), timeout_(timeout) {}

  /// Waits until every rank is here, and compares what they say of the world.
  void gather() {
    if (store_.add(key("claims", ranks_.rank), 1) > 1)
      report(fmt::format("two processes say that they are rank {}", ranks_.rank));
    const auto mine = fmt::format("{}", ranks_.size);
    say("here", mine);
    wait_for_all("here");
    for (int rank = 0; rank < ranks_.size; ++rank) {
      const auto theirs = text_of(store_.get(key("here", rank)));
      if (theirs == mine) continue;
      report(fmt::format("rank {} was started with a world of {} and rank {} with {}; give every "
                         "rank the same WORLD_SIZE",
                         rank, theirs, ranks_.rank, mine));
      fail_with(text_of(store_.get("failed")));
    }
  }

  /// Waits until every rank is connected to all others: one that went on and ended at once would
  /// look to the rest as if it had died.
  void connected() {
    say("connected", "");
    wait_for_all("connected");
  }

 private:
  static std::string key(const char* what, int rank) { return fmt::format("{}/{}", what, rank); }
  void say(const char* what, const std::string& text) {
    store_.set(key(what, ranks_.rank), bytes_of(text));
  }
  void report(const std::string& problem) { store_.set("failed", bytes_of(problem)); }

  /// The ranks poll, since a blocking wait names nobody.
  void wait_for_all(const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (milliseconds pause{1};; pause = std::min(pause * 2, milliseconds{50})) {
      std::vector<int> missing;
      for (int rank = 0; rank < ranks_.size; ++rank)
        if (rank != ranks_.rank && !store_.check({key(what, rank)})) missing.push_back(rank);
      if (store_.check({"failed"})) fail_with(text_of(store_.get("failed")));
      if (missing.empty()) return;
      if (std::chrono::steady_clock::now() > deadline)
        report(fmt::format("{} of {} ranks joined within {:.1f} s; missing: {{{}}}. Start the "
                           "missing ranks, or raise startup_timeout",
                           ranks_.size - static_cast<int>(missing.size()), ranks_.size,
                           static_cast<double>(timeout_.count()) / 1000.0,
                           fmt::join(missing, ", ")));
      else
        std::this_thread::sleep_for(pause);
    }
  }

  [[noreturn]] void fail_with(const std::string& problem) {
    // Rank 0's process serves the store: let the others read what failed before it goes.
    if (ranks_.rank == 0) std::this_thread::sleep_for(std::min(timeout_, milliseconds{500}));
    fail(ErrorCategory::collective, "accel: rank {} of {}: {}.", ranks_.rank, ranks_.size, problem);
  }

  c10d::Store& store_;
  const Ranks& ranks_;
  milliseconds timeout_;
};

c10::intrusive_ptr<c10d::Backend> open_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Ranks& ranks,
                                            const CommunicatorOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.startup_timeout);
  if (!options.interface.empty()) {
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(options.interface));
  } else if (ranks.local_size == ranks.size) {
    // A job on one host needs no network: a host name that resolves to an interface that is down
    // must not matter.
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, ranks.rank, ranks.size, gloo);
  backend->setTimeout(options.collective_timeout);
  return backend;
}

void set_group_backend(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Store>& store,
                       c10::DeviceType device, const Ranks& ranks,
                       const CommunicatorOptions& options) {
  if (device == c10::DeviceType::CPU) {
    group.setBackend(device, c10d::ProcessGroup::BackendType::GLOO,
                     open_gloo(store, ranks, options));
    group.setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    return;
  }
#ifdef ACCEL_WITH_CUDA
  if (device == c10::DeviceType::CUDA) {
    auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = options.collective_timeout;
    group.setBackend(
        device, c10d::ProcessGroup::BackendType::NCCL,
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, ranks.rank, ranks.size, nccl));
    // Objects and shapes travel as CPU tensors.
    group.setBackend(
        c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
        open_gloo(c10::make_intrusive<c10d::PrefixStore>("cpu", store), ranks, options));
    group.setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    return;
  }
#endif
  fail(ErrorCategory::config,
       "accel: rank {}: this build has no process group for {} tensors; build with "
       "-DACCEL_CUDA=ON, or use on<cpu>",
       ranks.rank, c10::DeviceTypeName(device));
}

/// What ranks compare before they exchange tensors: dtype, rank of the tensor, and its sizes.
constexpr int64_t max_dims = 14;
constexpr int64_t header_length = max_dims + 2;

at::Tensor describe(const at::Tensor& tensor) {
  auto header = at::full({header_length}, -1, at::kLong);
  auto* values = header.mutable_data_ptr<int64_t>();
  values[0] = static_cast<int64_t>(tensor.scalar_type());
  values[1] = tensor.dim();
  for (int64_t dim = 0; dim < std::min(tensor.dim(), max_dims); ++dim)
    values[2 + dim] = tensor.size(dim);
  return header;
}

std::string spelled(const int64_t* header) {
  std::vector<int64_t> sizes(header + 2, header + 2 + std::min(header[1], max_dims));
  return fmt::format("{} [{}]", c10::toString(static_cast<c10::ScalarType>(header[0])),
                     fmt::join(sizes, ", "));
}

}  // namespace

Communicator::Communicator() = default;

Communicator Communicator::connect(const Ranks& ranks, c10::DeviceType device,
                                   const CommunicatorOptions& options) {
  if (ranks.size == 1) return {};
  auto store = open_store(ranks, options);
  // The n-th connection of every process belongs together: each rank counts its own on the store.
  const auto number = store->add(fmt::format("accel/connections/{}", ranks.rank), 1);
  return over_store(store, ranks, device, options, fmt::format("accel/{}", number));
}

Communicator Communicator::over_store(c10::intrusive_ptr<c10d::Store> store, const Ranks& ranks,
                                      c10::DeviceType device, const CommunicatorOptions& options,
                                      const std::string& name) {
  Communicator communicator;
  communicator.ranks_ = ranks;
  if (ranks.size == 1) return communicator;
  if (ranks.rank < 0 || ranks.rank >= ranks.size)
    fail(ErrorCategory::config, "accel: rank {} is not within a world of {}; give ranks 0 to {}",
         ranks.rank, ranks.size, ranks.size - 1);
  auto connection = std::make_shared<Connection>();
  connection->store = c10::make_intrusive<c10d::PrefixStore>(name, store);
  connection->timeout = options.collective_timeout;
  try {
    RollCall roll(*connection->store, ranks, options.startup_timeout);
    roll.gather();
    connection->group =
        c10::make_intrusive<c10d::ProcessGroup>(connection->store, ranks.rank, ranks.size);
    set_group_backend(*connection->group, connection->store, device, ranks, options);
    roll.connected();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: the ranks could not be connected; a rank may have ended during "
         "start-up. Cause: {}",
         ranks.rank, ranks.size, cause_of(error));
  }
  // c10d keeps groups by name, one table a process; ranks that are threads of it need names of
  // their own.
  static std::atomic<uint64_t> groups{0};
  connection->group->setGroupName(fmt::format("{}/{}/{}", name, ranks.rank, groups++));
  communicator.connection_ = std::move(connection);
  return communicator;
}

Communicator Communicator::over_group(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                      const Ranks& ranks) {
  if (group->getRank() != ranks.rank || group->getSize() != ranks.size)
    fail(ErrorCategory::config,
         "accel: the group is rank {} of {}, and the caller says rank {} of {}", group->getRank(),
         group->getSize(), ranks.rank, ranks.size);
  Communicator communicator;
  communicator.ranks_ = ranks;
  if (ranks.size == 1) return communicator;
  communicator.connection_ = std::make_shared<Connection>();
  communicator.connection_->group = std::move(group);
  return communicator;
}

c10::intrusive_ptr<c10d::ProcessGroup> Communicator::group() const {
  return connection_ ? connection_->group : c10::intrusive_ptr<c10d::ProcessGroup>();
}

namespace {

/// Runs one collective and turns what c10d throws into a sentence.
template <class Start>
void run(const char* what, const Communicator& communicator, Start&& start) {
  try {
    start()->wait();
  } catch (const std::exception& error) {
    communicator.fail_operation(what, error);
  }
}

/// Throws the same sentence on every rank if their tensors differ in dtype or shape.
void compare(const char* what, const Communicator& communicator, c10d::ProcessGroup& group,
             const at::Tensor& tensor) {
  const auto& ranks = communicator.ranks();
  auto mine = describe(tensor);
  auto all = at::empty({ranks.size * header_length}, at::kLong);
  run(what, communicator, [&] { return group._allgather_base(all, mine, {}); });
  const auto* headers = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < ranks.size; ++rank)
    if (headers[rank * header_length + 1] > max_dims)
      fail(ErrorCategory::usage,
           "accel: {} takes tensors of up to {} dims, and rank {} gave one of {}", what, max_dims,
           rank, headers[rank * header_length + 1]);
  bool same = true;
  for (int rank = 1; rank < ranks.size; ++rank)
    same = same && std::memcmp(headers, headers + rank * header_length,
                               header_length * sizeof(int64_t)) == 0;
  if (same) return;
  std::vector<std::string> lines;
  for (int rank = 0; rank < ranks.size; ++rank)
    lines.push_back(fmt::format("rank {} has {}", rank, spelled(headers + rank * header_length)));
  fail(ErrorCategory::collective,
       "accel: {} needs the same dtype and shape on every rank, but {}; use pad_across_processes "
       "before it",
       what, fmt::join(lines, ", "));
}

c10d::ReduceOp operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::max: return c10d::ReduceOp::MAX;
    case Reduction::min: return c10d::ReduceOp::MIN;
    default: return c10d::ReduceOp::SUM;
  }
}

}  // namespace

void Communicator::barrier() const {
  if (!connection_) return;
  run("barrier", *this, [&] { return connection_->group->barrier(); });
}

at::Tensor Communicator::all_reduce(const at::Tensor& tensor, Reduction reduction) const {
  const auto type = tensor.scalar_type();
  // Before anything that only some ranks might find: what compare() throws, all of them throw.
  if (connection_) compare("reduce", *this, *connection_->group, tensor);
  if (reduction == Reduction::mean && !at::isFloatingType(type) && !at::isComplexType(type))
    fail(ErrorCategory::usage,
         "accel: rank {}: the mean over ranks of {} values is not an integer; reduce with sum, or "
         "convert to a floating type first",
         ranks_.rank, c10::toString(type));
  if (!connection_) return tensor.detach().clone();
  auto& group = *connection_->group;
  if (at::isComplexType(type)) {
    if (reduction == Reduction::max || reduction == Reduction::min)
      fail(ErrorCategory::usage,
           "accel: rank {}: complex numbers have no order; reduce them with sum or mean",
           ranks_.rank);
    return at::view_as_complex(
        all_reduce(at::view_as_real(tensor.detach().resolve_conj()), reduction));
  }
  // Types that the backend does not add, or adds with a rounding each time, are combined in a wider
  // one.
  const auto wide = type == at::kBool                 ? at::kByte
                    : type == at::kShort              ? at::kInt
                    : at::isReducedFloatingType(type) ? at::kFloat
                                                      : type;
  auto values =
      tensor.detach().to(wide, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  if (type == at::kBool && reduction == Reduction::sum) reduction = Reduction::max;
  if (values.numel() > 0) {
    std::vector<at::Tensor> tensors{values};
    c10d::AllreduceOptions options;
    options.reduceOp = operation(reduction);
    run("reduce", *this, [&] { return group.allreduce(tensors, options); });
  }
  if (reduction == Reduction::mean) values.div_(ranks_.size);
  return values.to(type);
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor) const {
  auto rows = (tensor.dim() == 0 ? tensor.reshape({1}) : tensor).detach().contiguous();
  if (!connection_) return rows.clone();
  auto& group = *connection_->group;
  compare("gather", *this, group, rows);
  auto sizes = rows.sizes().vec();
  sizes[0] *= ranks_.size;
  auto all = at::empty(sizes, rows.options());
  if (all.numel() == 0) return all;
  // Bytes are gathered: every dtype travels, whatever the backend can add.
  auto in = rows.view({-1}).view(at::kByte);
  auto out = all.view({-1}).view(at::kByte);
  run("gather", *this, [&] { return group._allgather_base(out, in, {}); });
  return all;
}

at::Tensor Communicator::broadcast(const at::Tensor& tensor, int root) const {
  if (root < 0 || root >= ranks_.size)
    fail(ErrorCategory::usage, "accel: rank {}: broadcast from rank {}, but the ranks are 0 to {}",
         ranks_.rank, root, ranks_.size - 1);
  auto copy = tensor.detach().clone(at::MemoryFormat::Contiguous);
  if (!connection_) return copy;
  auto& group = *connection_->group;
  compare("broadcast", *this, group, copy);
  if (copy.numel() == 0) return copy;
  std::vector<at::Tensor> bytes{copy.view({-1}).view(at::kByte)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  run("broadcast", *this, [&] { return group.broadcast(bytes, options); });
  return copy;
}

void Communicator::broadcast_coalesced_(const std::vector<at::Tensor>& tensors, int root) const {
  if (!connection_ || tensors.empty()) return;
  constexpr size_t message_bytes = 250 << 20;  // what PyTorch's DDP uses for parameters and buffers
  try {
    c10d::broadcast_coalesced(connection_->group, tensors, message_bytes, root);
  } catch (const std::exception& error) {
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: broadcasting {} tensors from rank {} failed; a rank has ended or "
         "holds another model. Cause: {}",
         ranks_.rank, ranks_.size, tensors.size(), root, cause_of(error));
  }
}

std::vector<std::string> Communicator::all_gather_bytes(const std::string& bytes) const {
  if (!connection_) return {bytes};
  auto& group = *connection_->group;
  auto length = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  auto lengths = at::empty({ranks_.size}, at::kLong);
  run("gather of objects", *this, [&] { return group._allgather_base(lengths, length, {}); });
  const auto longest = lengths.max().item<int64_t>();
  std::vector<std::string> all(ranks_.size);
  if (longest == 0) return all;
  auto padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), bytes.data(), bytes.size());
  auto gathered = at::empty({ranks_.size * longest}, at::kByte);
  run("gather of objects", *this, [&] { return group._allgather_base(gathered, padded, {}); });
  const auto* begin = static_cast<const char*>(gathered.const_data_ptr());
  for (int rank = 0; rank < ranks_.size; ++rank)
    all[rank].assign(begin + rank * longest, static_cast<size_t>(lengths[rank].item<int64_t>()));
  return all;
}

int64_t Communicator::all_sum(int64_t mine) const {
  if (!connection_) return mine;
  std::vector<at::Tensor> numbers{at::full({1}, mine, at::kLong)};
  run("sum of a number", *this, [&] { return connection_->group->allreduce(numbers); });
  return numbers[0].item<int64_t>();
}

void Communicator::leave_word(const std::string& reason) const noexcept {
  if (!connection_ || !connection_->store) return;
  try {
    connection_->store->set(last_word, bytes_of(reason));
  } catch (const std::exception&) {
    // The others learn less; what this rank is about to say is not lost.
  }
}

void Communicator::fail_operation(const char* what, const std::exception& cause) const {
  std::string word;
  try {
    if (connection_ && connection_->store && connection_->store->check({last_word}))
      word = text_of(connection_->store->get(last_word));
  } catch (const std::exception&) {
    // Rank 0 is gone, and its store with it.
  }
  if (!word.empty())
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: {} failed, since another rank stopped: {}", ranks_.rank,
         ranks_.size, what, word);
  fail(ErrorCategory::collective,
       "accel: rank {} of {}: {} failed. A rank has ended, calls another operation, or took longer "
       "than collective_timeout. Cause: {}",
       ranks_.rank, ranks_.size, what, cause_of(cause));
}

bool Communicator::all_agree(bool mine) const { return all_sum(mine ? 1 : 0) == size(); }

}  // namespace accel
