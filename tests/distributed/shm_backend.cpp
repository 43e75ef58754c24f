// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The backend over shared memory as c10d's users meet it: works and futures, several operations in
// flight, messages, sub-groups, groups that come and go, ranks that differ, leave or are late.
#include "support/shm_ranks.hpp"

#include <torch/torch.h>

#include <catch2/catch_all.hpp>

#include <atomic>
#include <random>

using accel::test::errors_of_shm_ranks;
using c10d::ProcessGroup;
using Catch::Matchers::ContainsSubstring;
using Tensors = std::vector<at::Tensor>;
using namespace std::chrono_literals;

namespace {

void check_none(const std::vector<std::string>& errors) {
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace

TEST_CASE("operations go on while the caller computes, and their futures have the tensors") {
  std::atomic<int> right{0}, called{0};
  check_none(errors_of_shm_ranks(2, [&](ProcessGroup& group) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<Tensors> lists;
    for (int i = 0; i < 20; ++i) lists.push_back({at::full({1000 * i + 1}, group.getRank() + i)});
    for (auto& list : lists) works.push_back(group.allreduce(list));
    // Polls: nobody but the group's own thread runs them.
    while (!works.back()->isCompleted()) std::this_thread::yield();
    for (int i = 0; i < 20; ++i) {
      const auto index = static_cast<std::size_t>(i);
      works[index]->getFuture()->addCallback([&](c10::ivalue::Future&) { ++called; });
      const auto value = works[index]->getFuture()->value().toTensorVector().at(0);
      right += works[index]->isSuccess() && value.is_same(lists[index][0]) &&
               at::equal(value, at::full({1000 * i + 1}, 2 * i + 1));
    }
  }));
  CHECK(right == 40);
  CHECK(called == 40);
}

TEST_CASE("a callback may wait for another operation of the group") {
  std::atomic<int> sum{0};
  check_none(errors_of_shm_ranks(2, [&](ProcessGroup& group) {
    Tensors first{at::ones({4})}, second{at::ones({4})};
    auto next = group.allreduce(first)->getFuture()->then(
        [&](c10::ivalue::Future&) {
          group.allreduce(second)->wait();
          return c10::IValue(second);
        },
        c10::ListType::create(c10::TensorType::get()));
    next->wait();
    sum += second[0].sum().item<int>();
  }));
  CHECK(sum == 16);
}

TEST_CASE("tensors in shared memory are reduced where they lie, and outlive the group") {
  std::vector<at::Tensor> kept(2);
  std::atomic<int> right{0};
  const accel::detail::RingOptions ring{.arena_bytes = 64 << 20};
  check_none(errors_of_shm_ranks(
      2,
      [&](ProcessGroup& group) {
        const auto rank = static_cast<std::size_t>(group.getRank());
        auto backend = group.getBackend(c10::DeviceType::CPU);
        for (const auto type : {at::kFloat, at::kBFloat16, at::kLong}) {
          auto tensor = backend->allocateTensor(1'000'001, type);
          tensor.copy_(at::arange(1'000'001) % 50 + group.getRank());
          Tensors list{tensor};
          group.allreduce(list)->wait();
          right += at::equal(tensor, (at::arange(1'000'001) % 50 * 2 + 1).to(type));
          // A part of one, and one beside an ordinary tensor of the other rank.
          Tensors part{tensor.narrow(0, 3, 500'000)};
          group.allreduce(part)->wait();
          Tensors mixed{rank == 0 ? tensor : tensor.clone()};
          group.allreduce(mixed)->wait();
          kept[rank] = mixed[0];
          right += tensor.size(0) == 1'000'001;
        }
        try {
          (void)backend->allocateTensor(100 << 20, at::kByte);
        } catch (const std::exception& error) {
          right += std::string(error.what()).find("has no room for 104857600 bytes") !=
                   std::string::npos;
        }
      },
      60'000ms, ring));
  CHECK(right == 2 * 7);
  CHECK(at::equal(kept[0], kept[1]));  // the group is gone
}

TEST_CASE("messages: both ways at once, by tag, of any size, from anybody") {
  std::atomic<int> right{0};
  check_none(errors_of_shm_ranks(3, [&](ProcessGroup& group) {
    const int rank = group.getRank(), next = (rank + 1) % 3, last = (rank + 2) % 3;
    for (const int64_t count : {0, 1, 16'384, 16'385, 700'000}) {
      Tensors out{at::arange(count) + rank}, in{at::zeros({count}, at::kLong)};
      auto sent = group.send(out, next, 7);
      auto got = group.recv(in, last, 7);
      sent->wait();
      got->wait();
      right += at::equal(in[0], at::arange(count) + last);
    }
    // Asked for in another order than sent.
    Tensors one{at::full({100'000}, 1)}, two{at::full({3}, 2)};
    auto first = group.send(one, next, 1), second = group.send(two, next, 2);
    Tensors in_two{at::zeros({3}, at::kLong)}, in_one{at::zeros({100'000}, at::kLong)};
    group.recv(in_two, last, 2)->wait();
    group.recv(in_one, last, 1)->wait();
    first->wait();
    second->wait();
    right += at::equal(in_one[0], one[0]) && at::equal(in_two[0], two[0]);
    if (rank == 0) {
      int64_t sum = 0, sources = 0;
      for (int i = 0; i < 2; ++i) {
        Tensors any{at::zeros({1}, at::kLong)};
        auto work = group.recvAnysource(any, 9);
        work->wait();
        sum += any[0].item<int64_t>();
        sources += work->sourceRank();
      }
      right += sum == 30 && sources == 3;
    } else {
      Tensors number{at::full({1}, 10 * rank)};
      group.send(number, 0, 9)->wait();
    }
    // Strided at both ends.
    auto from = at::arange(10).view({5, 2}).select(1, 0),
         to = at::zeros({5, 2}, at::kLong).select(1, 1);
    Tensors strided_out{from}, strided_in{to};
    auto work = group.send(strided_out, next, 3);
    group.recv(strided_in, last, 3)->wait();
    work->wait();
    right += at::equal(to, from);
  }));
  CHECK(right == 3 * (5 + 1 + 1) + 1);
}

TEST_CASE("a message of another size is told to the one that receives it") {
  const auto errors = errors_of_shm_ranks(2, [](ProcessGroup& group) {
    Tensors tensor{at::ones({group.getRank() == 0 ? 3 : 2})};
    if (group.getRank() == 0)
      group.send(tensor, 1, 5)->wait();
    else
      group.recv(tensor, 0, 5)->wait();
  });
  CHECK(errors[0].empty());
  CHECK_THAT(errors[1], ContainsSubstring("rank 0 sent 12 bytes with tag 5, and 8 were expected"));
}

TEST_CASE("ranks that differ are told so, with what each calls") {
  const auto errors = errors_of_shm_ranks(3, [](ProcessGroup& group) {
    Tensors tensor{at::ones({group.getRank() == 1 ? 5 : 6})};
    group.barrier()->wait();
    group.allreduce(tensor)->wait();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, ContainsSubstring("rank 1: all_reduce (sum) of 5 x float32"));
    CHECK_THAT(error, ContainsSubstring("rank 2: all_reduce (sum) of 6 x float32"));
  }
}

TEST_CASE("a rank that leaves, throws, or does not come is named on the others, in time") {
  const auto start = std::chrono::steady_clock::now();
  const auto left = errors_of_shm_ranks(3, [](ProcessGroup& group) {
    if (group.getRank() == 2) throw std::runtime_error("out of patience");
    group.barrier()->wait();
  });
  CHECK(left[2] == "out of patience");
  for (const int rank : {0, 1})
    CHECK_THAT(left[static_cast<std::size_t>(rank)],
               ContainsSubstring("rank 2 has left the group"));
  CHECK(std::chrono::steady_clock::now() - start < 10s);

  std::atomic<bool> over{false};
  const auto late = errors_of_shm_ranks(
      2,
      [&](ProcessGroup& group) {
        if (group.getRank() == 1) {
          while (!over) std::this_thread::sleep_for(1ms);
          return;
        }
        const auto finally = std::shared_ptr<void>(nullptr, [&](void*) { over = true; });
        Tensors tensor{at::ones({6})};
        group.allreduce(tensor)->wait();
      },
      500ms);
  CHECK_THAT(late[0],
             ContainsSubstring("waited 0.5 s in collective 2 of the group (all_reduce (sum) "
                               "of 6 x float32); rank 1 is at collective 1: barrier"));
  const auto messages = errors_of_shm_ranks(
      2,
      [&](ProcessGroup& group) {
        if (group.getRank() == 1) return std::this_thread::sleep_for(1500ms);
        Tensors tensor{at::ones({6})};
        group.recv(tensor, 1, 4)->wait();
      },
      500ms);
  CHECK_THAT(messages[0], ContainsSubstring("a receive from rank 1 of 24 bytes with tag 4"));
}

TEST_CASE("after a failure every later operation fails at once, also those in flight") {
  std::atomic<int> failed{0};
  const auto errors = errors_of_shm_ranks(2, [&](ProcessGroup& group) {
    Tensors tensor{at::ones({group.getRank() + 1})}, other{at::ones({4})};
    auto first = group.allreduce(tensor), second = group.allreduce(other);
    for (const auto& work : {first, second, group.barrier()}) {
      try {
        work->wait();
      } catch (const std::exception&) {
        ++failed;
      }
    }
    throw std::runtime_error("done");
  });
  CHECK(failed == 6);
}

TEST_CASE("groups are split, made again, and used side by side") {
  std::atomic<int> right{0};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  check_none(errors_of_shm_ranks(4, [&](ProcessGroup& group) {
    auto backend = group.getBackend(c10::DeviceType::CPU);
    for (int round = 0; round < 3; ++round) {
      const std::vector<int> evens{0, 2}, odds{3, 1};
      const bool even = group.getRank() % 2 == 0;
      const auto prefix = [&](const char* of) {
        return c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", of, round), store);
      };
      auto half = backend->split(prefix(even ? "even" : "odd"), even ? evens : odds,
                                 backend->getBackendOptions());
      right += backend->split(prefix("none"), even ? odds : evens, {}) == nullptr;
      right +=
          half->getSize() == 2 && half->getRank() == (group.getRank() == 2 || group.getRank() == 1);
      Tensors mine{at::full({3}, group.getRank())}, all{at::full({3}, group.getRank())};
      auto one = half->allreduce(mine);
      auto other = backend->allreduce(all);
      other->wait();
      one->wait();
      right +=
          at::equal(mine[0], at::full({3}, even ? 2 : 4)) && at::equal(all[0], at::full({3}, 6));
    }
  }));
  CHECK(right == 36);
}

TEST_CASE("random schedules on several groups end with the right sums") {
  const int draws = std::getenv("ACCEL_RANDOM_SCHEDULES")
                        ? std::atoi(std::getenv("ACCEL_RANDOM_SCHEDULES"))
                        : 1000;
  std::atomic<int> wrong{0};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  check_none(errors_of_shm_ranks(3, [&](ProcessGroup& group) {
    const int rank = group.getRank();
    auto world = group.getBackend(c10::DeviceType::CPU);
    auto pair = world->split(c10::make_intrusive<c10d::PrefixStore>("pair", store), {0, 1}, {});
    std::mt19937 random(7);                               // the schedule: every rank's
    std::mt19937 own(static_cast<unsigned>(rank) + 100);  // when to wait: this rank's
    struct Running {
      c10::intrusive_ptr<c10d::Work> work;
      at::Tensor result, right;
    };
    std::deque<Running> running;
    const auto settle = [&] {
      running.front().work->wait();
      wrong += !at::equal(running.front().result, running.front().right);
      running.pop_front();
    };
    for (int draw = 0; draw < draws; ++draw) {
      const bool in_pair = random() % 3 == 0;
      const int size = in_pair ? 2 : 3;
      const auto kind = random() % 4;
      const auto count =
          static_cast<int64_t>(random() % 4 == 0 ? random() % 300'000 : random() % 500);
      const auto seed = static_cast<int64_t>(random() % 100);
      if (in_pair && rank == 2) continue;
      auto& backend = in_pair ? pair : world;
      const auto of = [&](int from) { return at::arange(count) % 13 + seed + 10 * from; };
      auto sum = of(0) + of(1);
      if (!in_pair) sum += of(2);
      Tensors list{of(rank)};
      if (kind == 0) {
        running.push_back({backend->allreduce(list), list[0], sum});
      } else if (kind == 1) {
        c10d::BroadcastOptions options;
        options.rootRank = seed % size;
        running.push_back(
            {backend->broadcast(list, options), list[0], of(static_cast<int>(options.rootRank))});
      } else if (kind == 2) {
        auto all = at::zeros({size * count}, at::kLong);
        Tensors right{of(0), of(1)};
        if (!in_pair) right.push_back(of(2));
        running.push_back({backend->_allgather_base(all, list[0]), all, at::cat(right)});
      } else {
        auto part = at::zeros({count}, at::kLong);
        auto whole = of(rank).repeat({size});
        running.push_back({backend->_reduce_scatter_base(part, whole), part, sum});
      }
      if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 200));
      while (running.size() > own() % 8) settle();
    }
    while (!running.empty()) settle();
  }));
  CHECK(wrong == 0);
}
