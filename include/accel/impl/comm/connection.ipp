// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// How a job's ranks find each other.
#include <accel/comm/connection.hpp>

#include <accel/comm/transports.hpp>
#include <accel/config/environment.hpp>
#include <accel/config/keys.hpp>
#include <accel/detail/error.hpp>

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>

namespace accel {

using detail::bytes_of;
using detail::cause_of;
using detail::fail;
using detail::text_of;
using std::chrono::milliseconds;

namespace {

/// Whether ranks compare what they call. Unset: the environment says.
bool debug_mode(const CommunicatorOptions& options) {
  if (options.debug) return *options.debug;
  const auto& key = *find_key("debug");
  for (const auto& name : environment_names(key)) {
    const auto text = process_environment(name);
    if (!text || text->empty()) continue;
    std::string why;
    const auto value = parse_value(key, *text, why);
    if (!value) fail(ErrorCategory::config, "accel: {}: {}", name, why);
    return std::get<bool>(*value);
  }
  return false;
}

/// Whether something listens at an address.
bool answers(const std::string& host, int port, milliseconds patience) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  for (const auto* each = addresses.get(); each; each = each->ai_next) {
    const int socket =
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) continue;
    int problem = ::connect(socket, each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (problem == EINPROGRESS) {
      pollfd ready{socket, POLLOUT, 0};
      socklen_t length = sizeof problem;
      if (::poll(&ready, 1, static_cast<int>(patience.count())) == 1)
        ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &problem, &length);
    }
    ::close(socket);
    if (problem == 0) return true;
  }
  return false;
}

/// Waits until the store is served. c10d's own wait goes on for more than twice its timeout.
void wait_for_server(const Ranks& ranks, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (milliseconds pause{10};; pause = std::min(pause * 2, milliseconds{500})) {
    if (answers(ranks.master_addr, ranks.master_port, milliseconds{1000})) return;
    if (std::chrono::steady_clock::now() + pause > deadline)
      fail(
          ErrorCategory::collective,
          "accel: rank {} of {} found nobody at {}:{} within {:.1f} s; is rank 0 running, and are "
          "MASTER_ADDR and MASTER_PORT the same on every rank? startup_timeout is how long to wait",
          ranks.rank, ranks.size, ranks.master_addr, ranks.master_port,
          static_cast<double>(timeout.count()) / 1000.0);
    std::this_thread::sleep_for(pause);
  }
}

/// Opens the job's TCP store. Rank 0 serves it, unless the launcher's agent does.
c10::intrusive_ptr<c10d::Store> open_store(const Ranks& ranks, const CommunicatorOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(ranks.master_port);
  store.isServer = ranks.rank == 0 && !ranks.agent_store;
  store.waitWorkers = false;  // the roll call below waits, and says who is missing
  store.timeout = options.startup_timeout;
  store.multiTenant = true;  // a second accelerator of this process shares the server
  // The server closes its socket in the end; a later connection of this process needs the inherited
  // one again. While the server lives, further stores share it and take no socket.
  static std::mutex mutex;
  static c10::weak_intrusive_ptr<c10d::Store> serving{c10::intrusive_ptr<c10d::Store>()};
  // Ranks may be threads of one process: one that waits for the server must not keep it from starting.
  std::unique_lock lock(mutex, std::defer_lock);
  if (store.isServer) lock.lock();
  if (store.isServer && ranks.store_fd && serving.expired()) {
    const int own = ::fcntl(*ranks.store_fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
      fail(ErrorCategory::collective,
           "accel: rank {} of {}: the socket {} that the launcher left in ACCEL_STORE_FD cannot be "
           "used: {}",
           ranks.rank, ranks.size, *ranks.store_fd, std::strerror(errno));
    store.masterListenFd = own;
  }
  if (!store.isServer) wait_for_server(ranks, options.startup_timeout);
  try {
    c10::intrusive_ptr<c10d::Store> opened =
        c10::make_intrusive<c10d::TCPStore>(ranks.master_addr, store);
    if (store.isServer) serving = c10::weak_intrusive_ptr<c10d::Store>(opened);
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
  /// `manner` is what ranks must have in common beside the size of the world.
  RollCall(c10d::Store& store, const Ranks& ranks, milliseconds timeout, std::string manner)
      : store_(store), ranks_(ranks), timeout_(timeout), manner_(std::move(manner)) {}

  /// Waits until every rank is here, and compares what they say of the world.
  void gather() {
    if (store_.add(key("claims", ranks_.rank), 1) > 1)
      report(fmt::format("two processes say that they are rank {}", ranks_.rank));
    const auto mine = fmt::format("{}{}", ranks_.size, manner_);
    say("here", mine);
    wait_for_all("here");
    for (int rank = 0; rank < ranks_.size; ++rank) {
      const auto theirs = text_of(store_.get(key("here", rank)));
      if (theirs == mine) continue;
      report(fmt::format("rank {} was started with a world of {} and rank {} with {}; give every "
                         "rank the same WORLD_SIZE, ACCEL_DEBUG and ACCEL_TRANSPORT",
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
    std::vector<std::string> keys;
    for (int rank = 0; rank < ranks_.size; ++rank) keys.push_back(key(what, rank));
    for (milliseconds pause{1};; pause = std::min(pause * 2, milliseconds{50})) {
      const bool all = store_.check(keys);  // one request, whatever the number of ranks
      if (store_.check({"failed"})) fail_with(text_of(store_.get("failed")));
      if (all) return;
      if (std::chrono::steady_clock::now() > deadline)
        report_missing(what);
      else
        std::this_thread::sleep_for(pause);
    }
  }

  void report_missing(const char* what) {
    std::vector<int> missing;
    for (int rank = 0; rank < ranks_.size; ++rank)
      if (rank != ranks_.rank && !store_.check({key(what, rank)})) missing.push_back(rank);
    if (missing.empty()) return;  // the last one came just now
    constexpr size_t shown = 20;
    const auto count = missing.size();
    missing.resize(std::min(count, shown));
    report(fmt::format("{} of {} ranks joined within {:.1f} s; missing: {{{}{}}}. Start the "
                       "missing ranks, or raise startup_timeout",
                       ranks_.size - static_cast<int>(count), ranks_.size,
                       static_cast<double>(timeout_.count()) / 1000.0, fmt::join(missing, ", "),
                       count > shown ? ", ..." : ""));
  }

  [[noreturn]] void fail_with(const std::string& problem) {
    // Rank 0's process serves the store: let the others read what failed before it goes.
    if (ranks_.rank == 0) std::this_thread::sleep_for(std::min(timeout_, milliseconds{500}));
    fail(ErrorCategory::collective, "accel: rank {} of {}: {}.", ranks_.rank, ranks_.size, problem);
  }

  c10d::Store& store_;
  const Ranks& ranks_;
  milliseconds timeout_;
  std::string manner_;
};

std::string manner_of(bool debug, Transport transport) {
  std::string manner = debug ? " in debug mode" : "";
  if (transport == Transport::shared_memory) manner += " over shared memory";
  if (transport == Transport::gloo) manner += " over Gloo";
  return manner;
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

Communicator Communicator::over_store(const c10::intrusive_ptr<c10d::Store>& store,
                                      const Ranks& ranks, c10::DeviceType device,
                                      const CommunicatorOptions& options, const std::string& name) {
  Communicator communicator;
  communicator.ranks_ = ranks;
  if (ranks.size == 1) return communicator;
  if (ranks.rank < 0 || ranks.rank >= ranks.size)
    fail(ErrorCategory::config, "accel: rank {} is not within a world of {}; give ranks 0 to {}",
         ranks.rank, ranks.size, ranks.size - 1);
  auto connection = std::make_shared<Connection>();
  connection->store = c10::make_intrusive<c10d::PrefixStore>(name, store);
  connection->debug = debug_mode(options);
  connection->device = device;
  connection->options = options;
  try {
    const auto transport = detail::transport_of(options);
    RollCall roll(*connection->store, ranks, options.startup_timeout,
                  manner_of(connection->debug, transport));
    roll.gather();
    connection->group =
        c10::make_intrusive<c10d::ProcessGroup>(connection->store, ranks.rank, ranks.size);
    detail::set_backends(*connection->group, connection->store, device, ranks, options, transport);
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

void Communicator::require_store() const {
  if (!connection_->store)
    fail(ErrorCategory::usage,
         "accel: rank {} of {}: a connection over a group of the caller's cannot be duplicated, "
         "since its store is not known; connect with Communicator::over_store",
         ranks_.rank, ranks_.size);
}

Communicator Communicator::duplicate() const {
  if (!connection_) return *this;
  require_store();
  return over_store(connection_->store, ranks_, connection_->device, connection_->options,
                    fmt::format("duplicate/{}", connection_->duplicates++));
}

Communicator Communicator::split(int color) const {
  if (!connection_) return *this;
  require_store();
  // Launchers number the ranks of a host in a row, so that its first one names it.
  const bool is_one_host = ranks_.local_size == ranks_.size;
  const int host = is_one_host ? 0 : ranks_.rank - ranks_.local_rank;
  std::vector<int> members, hosts;
  int rank = 0;
  for (const auto& said : all_gather_bytes(fmt::format("{} {}", color, host))) {
    const auto space = said.find(' ');
    if (std::stoi(said.substr(0, space)) == color) {
      members.push_back(rank);
      hosts.push_back(std::stoi(said.substr(space + 1)));
    }
    ++rank;
  }
  auto ranks = ranks_;
  const auto place = std::ranges::find(members, ranks_.rank) - members.begin();
  ranks.rank = static_cast<int>(place);
  ranks.size = static_cast<int>(members.size());
  ranks.local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + place, host));
  ranks.local_size = static_cast<int>(std::ranges::count(hosts, host));
  return over_store(connection_->store, ranks, connection_->device, connection_->options,
                    fmt::format("split/{}/{}", connection_->duplicates++, color));
}

Communicator Communicator::over_group(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                      const Ranks& ranks, const CommunicatorOptions& options) {
  if (group->getRank() != ranks.rank || group->getSize() != ranks.size)
    fail(ErrorCategory::config,
         "accel: the group is rank {} of {}, and the caller says rank {} of {}", group->getRank(),
         group->getSize(), ranks.rank, ranks.size);
  Communicator communicator;
  communicator.ranks_ = ranks;
  if (ranks.size == 1) return communicator;
  const auto devices = group->getDeviceTypes();
  if (std::ranges::none_of(devices, [](const auto& device) { return device.is_cpu(); }))
    fail(ErrorCategory::config,
         "accel: rank {}: the group has no backend for CPU tensors, in which ranks tell each other "
         "what they call; open it with one, such as c10d's \"cpu:gloo,cuda:nccl\"",
         ranks.rank);
  communicator.connection_ = std::make_shared<Connection>();
  communicator.connection_->group = std::move(group);
  communicator.connection_->debug = debug_mode(options);
  return communicator;
}

}  // namespace accel
