// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/shard_exchange.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <exception>
#include <limits>
#include <memory>
#include <utility>

namespace accel::detail {

namespace {

/// Also where one has failed: the others still write to memory that is the caller's again after this.
void wait_for_all(const std::vector<c10::intrusive_ptr<c10d::Work>>& works) {
  std::exception_ptr failure;
  for (const auto& work : works) try {
      work->wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

PendingExchange::PendingExchange() = default;
PendingExchange::PendingExchange(std::vector<c10::intrusive_ptr<c10d::Work>> works,
                                 std::function<void()> after, std::vector<at::Tensor> kept)
    : works_(std::move(works)), after_(std::move(after)), kept_(std::move(kept)), pending_(true) {}
PendingExchange::PendingExchange(PendingExchange&& other) noexcept
    : works_(std::move(other.works_)),
      after_(std::move(other.after_)),
      kept_(std::move(other.kept_)),
      pending_(std::exchange(other.pending_, false)) {}
PendingExchange& PendingExchange::operator=(PendingExchange&& other) noexcept {
  works_ = std::move(other.works_);
  after_ = std::move(other.after_);
  kept_ = std::move(other.kept_);
  pending_ = std::exchange(other.pending_, false);
  return *this;
}
PendingExchange::~PendingExchange() = default;

void PendingExchange::wait() {
  if (!std::exchange(pending_, false)) return;
  const auto works = std::exchange(works_, {});
  const auto kept = std::exchange(kept_, {});
  const auto after = std::exchange(after_, {});
  wait_for_all(works);
  if (after) after();
}

namespace {

bool is_over_gloo(const Communicator& communicator) {
  return communicator.size() > 1 &&
         communicator.group()->getBackend(c10::DeviceType::CPU)->getBackendName() == "gloo";
}

int checked(const Communicator& world, int group_size) {
  if (group_size < 1 || world.size() % group_size != 0)
    fail(ErrorCategory::config,
         "accel: rank {}: {} ranks cannot be replicas of {} each; set sharded.group_size to a "
         "divisor of the number of ranks",
         world.rank(), world.size(), group_size);
  return group_size;
}

}  // namespace

ShardExchange::ShardExchange(const Communicator& world)
    : world_(world), group_(world), over_gloo_(is_over_gloo(world)) {}

ShardExchange::ShardExchange(const Communicator& world, int group_size)
    : world_(world),
      group_(world.split(world.rank() / checked(world, group_size))),
      replicas_(world.split(world.rank() % group_size)),
      over_gloo_(is_over_gloo(group_)) {}

PendingExchange ShardExchange::gather(const at::Tensor& whole, const at::Tensor& shard,
                                      int tag) const {
  const auto mine = whole.narrow(0, rank() * shard.numel(), shard.numel());
  const bool in_place = mine.data_ptr() == shard.data_ptr();
  if (size() == 1) {
    if (!in_place) mine.copy_(shard);
    return {};
  }
  auto& group = *group_.group();
  if (!over_gloo_ || !whole.is_cpu()) {
    auto input = shard.to(whole.scalar_type());
    auto output = whole;
    return {{group._allgather_base(output, input)}, nullptr, {output, input}};
  }
  if (!in_place) mine.copy_(shard);
  if (shard.numel() == 0) return {};
  return gather_over_gloo(whole, tag);
}

PendingExchange ShardExchange::gather_over_gloo(const at::Tensor& whole, int tag) const {
  // Gloo's own all-gather takes a temporary of the size of the whole, and several times as long; and its
  // collectives end the process, in a thread that is not ours, where ranks bring other sizes. So shards
  // go from rank to rank under their tag, with the tag itself ahead of them.
  constexpr int of_tags = std::numeric_limits<int>::max();
  auto& group = *group_.group();
  const auto part_of = [&](int part) {
    const auto each = whole.numel() / size();
    return std::vector<at::Tensor>{whole.narrow(0, part * each, each)};
  };
  struct Peer {
    int rank;
    at::Tensor tag;
    c10::intrusive_ptr<c10d::Work> tag_received;
  };
  auto own_tag = std::vector<at::Tensor>{at::full({1}, tag, at::kInt)};
  std::vector<Peer> peers;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() - step + size()) % size(), to = (rank() + step) % size();
    auto its_tag = std::vector<at::Tensor>{at::empty({1}, at::kInt)};
    auto received = part_of(from), sent = part_of(rank());
    peers.push_back({from, its_tag[0], group.recv(its_tag, from, of_tags)});
    works.push_back(group.send(own_tag, to, of_tags));
    works.push_back(group.recv(received, from, tag));
    works.push_back(group.send(sent, to, tag));
  }
  return {{},
          [peers = std::move(peers), works = std::move(works), tag] {
            for (const auto& peer : peers) {
              peer.tag_received->wait();
              if (const auto other = peer.tag.item<int>(); other != tag)
                throw OtherGather(peer.rank, other);
            }
            wait_for_all(works);
          },
          {whole, own_tag[0]}};
}

PendingExchange ShardExchange::reduce(const at::Tensor& shard, const at::Tensor& parts) const {
  if (replicas_.size() == 1) return reduce_in_group(shard, parts);
  // Replicas add what each has summed, in the dtype of the wire.
  const auto sum = at::empty({shard.numel()}, parts.options());
  auto pending = std::make_shared<PendingExchange>(reduce_in_group(sum, parts));
  return {{},
          [pending, sum, shard, replicas = replicas_] {
            pending->wait();
            std::vector<at::Tensor> all{sum};
            replicas.group()->allreduce(all)->wait();
            shard.copy_(sum);
          },
          {}};
}

PendingExchange ShardExchange::reduce_in_group(const at::Tensor& shard,
                                               const at::Tensor& parts) const {
  if (size() == 1) {
    shard.copy_(parts);
    return {};
  }
  auto& group = *group_.group();
  if (!over_gloo_ || !parts.is_cpu()) {
    auto input = parts;
    if (shard.scalar_type() == parts.scalar_type()) {
      auto output = shard;
      return {{group._reduce_scatter_base(output, input)}, nullptr, {output, input}};
    }
    auto sum = at::empty({shard.numel()}, parts.options());
    return {{group._reduce_scatter_base(sum, input)}, [shard, sum] { shard.copy_(sum); }, {input}};
  }
  // Gloo has no reduce-scatter of its own; c10d's takes an all-reduce's time.
  auto input = parts, received = at::empty_like(parts);
  std::vector<int64_t> equal;
  return {{group.alltoall_base(received, input, equal, equal)},
          [shard, received, ranks = size()] {
            const auto rows = received.view({ranks, shard.numel()});
            auto sum = rows[0];
            for (int rank = 1; rank < ranks; ++rank) sum.add_(rows[rank]);
            shard.copy_(sum);
          },
          {input}};
}

}  // namespace accel::detail
