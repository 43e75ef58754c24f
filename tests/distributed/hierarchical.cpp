// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks of several hosts: shared memory inside each, Gloo between them. The ranks are threads, and
// say which host each belongs to; processes in network namespaces are in processes/hosts.cpp.
#include "support/sample_tensors.hpp"
#include "support/shm_ranks.hpp"

#include <accel/comm/hierarchical_backend.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <catch2/catch_all.hpp>

#include <functional>

using accel::HierarchicalBackend;
using accel::ShmBackend;
using accel::detail::HostLayout;
using accel::test::errors_of_group_ranks;
using accel::test::Faults;
using accel::test::lay_out;
using accel::test::Layout;
using accel::test::same;
using accel::test::types;
using accel::test::values;
using c10d::ProcessGroup;
using Catch::Matchers::ContainsSubstring;
using Tensors = std::vector<at::Tensor>;
using namespace std::chrono_literals;

namespace {

/// What each rank's body throws, as text; empty for one that returns. `hosts` names each rank's.
std::vector<std::string> errors_of_hosts(const std::vector<std::string>& hosts,
                                         const std::function<void(ProcessGroup&)>& body,
                                         std::chrono::milliseconds timeout = 60s) {
  const auto layout = HostLayout::of(hosts);
  const auto network = [&](const c10::intrusive_ptr<c10d::Store>& part, int rank,
                           int size) -> c10::intrusive_ptr<c10d::Backend> {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(part, rank, size, options);
  };
  const auto open = [&](const c10::intrusive_ptr<c10d::Store>& store, int rank) {
    auto options = c10::make_intrusive<ShmBackend::Options>(60s, timeout);
    options->ring = {.slot_bytes = 4096, .slots = 3};
    return c10::make_intrusive<HierarchicalBackend>(store, rank, layout, network, options);
  };
  return errors_of_group_ranks(layout.size(), open, body);
}

/// The host of each rank.
using Worlds = std::vector<std::vector<std::string>>;
const Worlds even{{"a", "a", "b", "b"}, {"a", "b", "a", "b"}, {"a", "a", "b", "b", "c", "c"}};
const Worlds uneven{{"a", "a", "b", "c", "c"}, {"a", "b", "a", "a"}};

/// Runs `body(faults, type, layout, count, group)` for every combination, on every rank of each world.
template <class Body>
std::vector<std::string> faults_of_all(const Worlds& worlds, Body&& body) {
  Faults faults;
  for (const auto& hosts : worlds) {
    const auto errors = errors_of_hosts(hosts, [&](ProcessGroup& group) {
      for (const auto type : types)
        for (const auto layout : {Layout::plain, Layout::strided, Layout::transposed})
          for (const int64_t count : {0, 1, 2, 3, 1026}) body(faults, type, layout, count, group);
    });
    for (const auto& error : errors) faults.expect(error.empty(), error);
  }
  return faults.all();
}

Worlds all_worlds() {
  auto worlds = even;
  worlds.insert(worlds.end(), uneven.begin(), uneven.end());
  return worlds;
}

std::string name(const char* what, at::ScalarType type, int64_t count, const ProcessGroup& group) {
  return fmt::format("{} {} count {} rank {} of {}", what, c10::toString(type), count,
                     group.getRank(), group.getSize());
}

bool is_reduced(at::ScalarType type) {
  return type != at::kFloat8_e4m3fn && type != at::kFloat8_e5m2;
}

/// The sum over all ranks of values(type, count, rank, seed).
at::Tensor sum_of(at::ScalarType type, int64_t count, int size, int64_t seed = 0) {
  if (type == at::kBool) {
    auto any = at::zeros({count}, at::kBool);
    for (int rank = 0; rank < size; ++rank) any.logical_or_(values(type, count, rank, seed));
    return any;
  }
  const auto wide = at::isComplexType(type) ? at::kComplexDouble : at::kDouble;
  auto sum = at::zeros({count}, wide);
  for (int rank = 0; rank < size; ++rank)
    sum += values(type, count, rank, seed).to(at::isComplexType(type) ? wide : at::kFloat);
  return (at::isComplexType(type) ? sum : sum.to(at::kFloat)).to(type);
}

const std::vector<std::string> none;

}  // namespace

TEST_CASE("ranks are told apart by their hosts") {
  const auto layout = HostLayout::of({"a", "b", "a", "c", "a"});
  CHECK(layout.host == std::vector<int>{0, 1, 0, 2, 0});
  CHECK(layout.place == std::vector<int>{0, 0, 1, 0, 2});
  CHECK(layout.ranks == std::vector<std::vector<int>>{{0, 2, 4}, {1}, {3}});
  CHECK(layout.columns() == 1);
  CHECK_FALSE(layout.is_even());
  CHECK(HostLayout::of({"a", "b", "b", "a"}).is_even());
}

TEST_CASE("broadcast between hosts, of every dtype and layout, from every rank") {
  CHECK(faults_of_all(all_worlds(), [](Faults& faults, auto type, auto layout, auto count,
                                       ProcessGroup& group) {
          for (int root = 0; root < group.getSize(); ++root) {
            Tensors tensors{lay_out(values(type, count, group.getRank()), layout)};
            c10d::BroadcastOptions options;
            options.rootRank = root;
            group.broadcast(tensors, options)->wait();
            faults.expect(same(tensors[0].flatten(),
                               values(type, count, root).view(tensors[0].sizes()).flatten()),
                          name("broadcast", type, count, group));
          }
        }) == none);
}

TEST_CASE("all_reduce between hosts, of every dtype and layout") {
  CHECK(faults_of_all(all_worlds(), [](Faults& faults, auto type, auto layout, auto count,
                                       ProcessGroup& group) {
          if (!is_reduced(type)) return;
          Tensors tensors{lay_out(values(type, count, group.getRank()), layout)};
          group.allreduce(tensors)->wait();
          faults.expect(same(tensors[0].flatten(), sum_of(type, count, group.getSize())),
                        name("all_reduce", type, count, group));
        }) == none);
}

TEST_CASE("all_gather between hosts, of every dtype and layout, into one tensor and a list") {
  CHECK(faults_of_all(
            even, [](Faults& faults, auto type, auto layout, auto count, ProcessGroup& group) {
              const auto input = lay_out(values(type, count, group.getRank()), layout);
              Tensors expected, inputs{input};
              std::vector<Tensors> lists(1);
              for (int rank = 0; rank < group.getSize(); ++rank) {
                expected.push_back(lay_out(values(type, count, rank), layout).flatten());
                lists[0].push_back(lay_out(at::zeros_like(values(type, count, rank)), layout));
              }
              auto output = lay_out(at::zeros({group.getSize() * count}, input.options()), layout);
              auto given = input;
              group._allgather_base(output, given)->wait();
              faults.expect(same(output.flatten(), at::cat(expected)),
                            name("into one", type, count, group));
              group.allgather(lists, inputs)->wait();
              for (std::size_t rank = 0; rank < expected.size(); ++rank)
                faults.expect(same(lists[0][rank].flatten(), expected[rank]),
                              name("list", type, count, group));
            }) == none);
}

TEST_CASE("reduce_scatter between hosts, of every dtype and layout, from one tensor and a list") {
  CHECK(faults_of_all(
            even, [](Faults& faults, auto type, auto layout, auto count, ProcessGroup& group) {
              if (!is_reduced(type)) return;
              const auto size = group.getSize();
              std::vector<Tensors> lists(1);
              Tensors plain;
              for (int to = 0; to < size; ++to) {
                plain.push_back(values(type, count, group.getRank(), to));
                lists[0].push_back(lay_out(plain.back(), layout));
              }
              const auto expected = sum_of(type, count, size, group.getRank());
              auto input = at::cat(plain);
              auto output = lay_out(at::zeros_like(expected), layout);
              group._reduce_scatter_base(output, input)->wait();
              faults.expect(same(output.flatten(), expected), name("from one", type, count, group));
              Tensors outputs{lay_out(at::zeros_like(expected), layout)};
              group.reduce_scatter(outputs, lists)->wait();
              faults.expect(same(outputs[0].flatten(), expected), name("list", type, count, group));
            }) == none);
}

TEST_CASE("hosts of unlike sizes gather and reduce-scatter over the network") {
  Faults faults;
  for (const auto& hosts : uneven) {
    const auto errors = errors_of_hosts(hosts, [&](ProcessGroup& group) {
      const auto rank = group.getRank(), size = group.getSize();
      auto input = values(at::kFloat, 30, rank), output = at::empty({30 * size});
      group._allgather_base(output, input)->wait();
      faults.expect(output[30 * (size - 1) + 4].item<float>() ==
                        values(at::kFloat, 30, size - 1)[4].item<float>(),
                    "all_gather");
      auto mine = at::empty({30});
      group._reduce_scatter_base(mine, output)->wait();
      faults.expect(same(mine, values(at::kFloat, 30, rank) * size), "reduce_scatter");
    });
    for (const auto& error : errors) faults.expect(error.empty(), error);
  }
  CHECK(faults.all() == none);
}

TEST_CASE("averages between hosts are of all ranks, whatever the host they are on") {
  Faults faults;
  for (const auto& hosts : all_worlds()) {
    const auto errors = errors_of_hosts(hosts, [&](ProcessGroup& group) {
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::AVG;
      const auto size = group.getSize();
      Tensors floats{at::full({5}, static_cast<float>(group.getRank() * size))};
      group.allreduce(floats, options)->wait();
      const auto mean = static_cast<float>(size * (size - 1)) / 2;
      faults.expect(at::allclose(floats[0], at::full({5}, mean)), "mean");
      // The sum of a host would be infinite in 16 bits.
      if (HostLayout::of(hosts).is_even()) {
        Tensors halves{at::full({5}, 60'000.0, at::kHalf)};
        group.allreduce(halves, options)->wait();
        faults.expect(at::allclose(halves[0], at::full({5}, 60'000.0, at::kHalf)), "large halves");
      }
      options.reduceOp = c10d::ReduceOp::MAX;
      Tensors largest{at::full({5}, group.getRank(), at::kShort)};
      group.allreduce(largest, options)->wait();
      faults.expect(same(largest[0], at::full({5}, size - 1, at::kShort)), "max");
    });
    for (const auto& error : errors) faults.expect(error.empty(), error);
  }
  CHECK(faults.all() == none);
}

TEST_CASE("a tensor that is only marked as a conjugate is summed as what it means") {
  const auto errors = errors_of_hosts({"a", "b", "b", "a"}, [](ProcessGroup& group) {
    const auto stored = values(at::kComplexFloat, 9, group.getRank());
    Tensors tensors{stored.clone().conj()};
    // Not through the group: c10d's dispatch hands on copies of such tensors, and drops what comes back.
    group.getBackend(c10::kCPU)->allreduce(tensors)->wait();
    const auto expected = at::conj_physical(sum_of(at::kComplexFloat, 9, 4));
    if (!at::equal(tensors[0].resolve_conj(), expected)) throw std::runtime_error("not the sum");
  });
  CHECK(errors == std::vector<std::string>(4));
}

TEST_CASE("a group may be closed while an operation waits for others") {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_of_hosts({"a", "a", "b", "b"}, [](ProcessGroup& group) {
    Tensors tensors{at::ones({8})};
    if (group.getRank() == 2) group.allreduce(tensors);  // and goes
  });
  CHECK(errors == std::vector<std::string>(4));
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
}

TEST_CASE("what the network alone serves, and several operations under way") {
  const auto errors = errors_of_hosts({"a", "a", "b", "b"}, [](ProcessGroup& group) {
    const auto rank = group.getRank();
    std::vector<Tensors> many;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 20; ++i) {
      many.push_back({at::full({1000 + i}, static_cast<float>(rank + i))});
      works.push_back(group.allreduce(many.back()));
    }
    group.barrier()->wait();
    Tensors message{at::full({4}, rank)};
    if (rank == 0) group.send(message, 3, 1)->wait();
    if (rank == 3) group.recv(message, 0, 1)->wait();
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i]->wait();
      const auto sum = static_cast<float>(6 + 4 * i);
      if (!at::equal(many[i][0], at::full_like(many[i][0], sum))) throw std::runtime_error("sum");
    }
    if (rank == 3 && message[0][0].item<int64_t>() != 0) throw std::runtime_error("message");
  });
  CHECK(errors == std::vector<std::string>(4));
}

TEST_CASE("a rank that calls something else, or is gone, is told on every host") {
  SECTION("another number of elements on one host") {
    const auto errors = errors_of_hosts(
        {"a", "a", "b", "b"},
        [](ProcessGroup& group) {
          Tensors tensors{at::ones({group.getRank() == 3 ? 7 : 8})};
          group.allreduce(tensors)->wait();
        },
        5s);
    CHECK_THAT(errors[2], ContainsSubstring("rank 2 of 4: all_reduce, operation 1 of the group: "
                                            "inside host 1 of 2 (ranks {2, 3})"));
    CHECK_THAT(errors[3], ContainsSubstring("ranks are not at the same call"));
    CHECK_THAT(errors[0], ContainsSubstring("over the network between ranks {0, 2}"));
    CHECK_THAT(errors[1], ContainsSubstring("rank 1 of 4"));
  }
  SECTION("one that returns early") {
    const auto errors = errors_of_hosts(
        {"a", "a", "b", "b"},
        [](ProcessGroup& group) {
          Tensors tensors{at::ones({8})};
          group.allreduce(tensors)->wait();  // all are connected
          if (group.getRank() == 3) return;
          group.allreduce(tensors)->wait();
        },
        5s);
    CHECK(errors[3].empty());
    for (const std::size_t rank : {0, 1, 2})
      CHECK_THAT(errors[rank], ContainsSubstring("all_reduce"));
    CHECK_THAT(errors[2], ContainsSubstring("inside host 1 of 2"));
  }
  SECTION("what has no value, at the call") {
    const auto errors = errors_of_hosts({"a", "a", "b", "b"}, [](ProcessGroup& group) {
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::AVG;
      Tensors tensors{at::ones({8}, at::kInt)};
      group.allreduce(tensors, options)->wait();
    });
    for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("sum them"));
  }
}
