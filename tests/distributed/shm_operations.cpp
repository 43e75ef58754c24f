// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The backend over shared memory, each operation with each dtype, layout and awkward size, against
// what LibTorch computes on one thread.
#include "support/sample_tensors.hpp"
#include "support/shm_ranks.hpp"

#include <accel/comm/shm_tensors.hpp>

#include <torch/torch.h>

#include <catch2/catch_all.hpp>

using accel::test::errors_of_shm_ranks;
using accel::test::Faults;
using accel::test::lay_out;
using accel::test::Layout;
using accel::test::same;
using accel::test::types;
using accel::test::values;
using c10d::ProcessGroup;
using Tensors = std::vector<at::Tensor>;

namespace {

const std::vector<Layout> layouts{Layout::plain, Layout::strided, Layout::transposed,
                                  Layout::offset};
const std::vector<int64_t> sizes{0, 1, 2, 3, 64, 1021, 1024, 1026, 5000};
const accel::detail::RingOptions small{.slot_bytes = 4096, .slots = 3};

std::string name(const char* what, at::ScalarType type, Layout layout, int64_t count, int rank) {
  return fmt::format("{} {} layout {} count {} rank {}", what, c10::toString(type),
                     static_cast<int>(layout), count, rank);
}

/// Runs `body(type, layout, count, rank, group)` for every combination on every rank.
template <class Body>
std::vector<std::string> faults_of_all(int size, Body&& body) {
  Faults faults;
  const auto errors = errors_of_shm_ranks(
      size,
      [&](ProcessGroup& group) {
        for (const auto type : types)
          for (const auto layout : layouts)
            for (const auto count : sizes) body(faults, type, layout, count, group);
      },
      std::chrono::milliseconds(60'000), small);
  for (const auto& error : errors) faults.expect(error.empty(), error);
  return faults.all();
}

const std::vector<std::string> none;

}  // namespace

TEST_CASE("broadcast, of every dtype and layout") {
  CHECK(
      faults_of_all(3, [](Faults& faults, auto type, auto layout, auto count, ProcessGroup& group) {
        c10d::BroadcastOptions options;
        options.rootRank = count % 3;
        auto tensor = lay_out(values(type, count, group.getRank()), layout);
        Tensors list{tensor};
        group.broadcast(list, options)->wait();
        faults.expect(same(tensor, values(type, count, static_cast<int>(options.rootRank))),
                      name("broadcast", type, layout, count, group.getRank()));
      }) == none);
}

TEST_CASE("all_gather in its four forms") {
  CHECK(
      faults_of_all(2, [](Faults& faults, auto type, auto layout, auto count, ProcessGroup& group) {
        const int rank = group.getRank();
        auto input = lay_out(values(type, count, rank), layout);
        std::vector<Tensors> lists{
            {lay_out(values(type, count, 9), layout), lay_out(values(type, count, 9), layout)}};
        Tensors inputs{input};
        group.allgather(lists, inputs)->wait();
        auto whole = lay_out(values(type, 2 * count, 9), layout);
        group._allgather_base(whole, input)->wait();
        Tensors wholes{lay_out(values(type, 2 * count, 9), layout)};
        group.allgather_into_tensor_coalesced(wholes, inputs)->wait();
        std::vector<Tensors> by_rank{{lay_out(values(type, count, 9), layout)},
                                     {lay_out(values(type, count, 9), layout)}};
        group.allgather_coalesced(by_rank, inputs)->wait();
        for (int from = 0; from < 2; ++from) {
          const auto right = values(type, count, from);
          const auto part = static_cast<std::size_t>(from);
          faults.expect(same(lists[0][part], right), name("list", type, layout, count, rank));
          faults.expect(same(by_rank[part][0], right), name("by rank", type, layout, count, rank));
          for (const auto& each : {whole, wholes[0]})
            faults.expect(
                same(each.contiguous().reshape({-1}).narrow(0, from * count, count), right),
                name("base", type, layout, count, rank));
        }
      }) == none);
}

TEST_CASE("gather, scatter and all_to_all") {
  CHECK(
      faults_of_all(3, [](Faults& faults, auto type, auto layout, auto count, ProcessGroup& group) {
        const int rank = group.getRank(), root = static_cast<int>(count % 3);
        Tensors input{lay_out(values(type, count, rank), layout)};
        std::vector<Tensors> lists;
        if (rank == root)
          lists.push_back({lay_out(values(type, count, 9), layout),
                           lay_out(values(type, count, 9), layout),
                           lay_out(values(type, count, 9), layout)});
        c10d::GatherOptions gather;
        gather.rootRank = root;
        group.gather(lists, input, gather)->wait();
        for (int from = 0; rank == root && from < 3; ++from)
          faults.expect(same(lists[0][static_cast<std::size_t>(from)], values(type, count, from)),
                        name("gather", type, layout, count, rank));

        std::vector<Tensors> given;
        if (rank == root)
          given.push_back({values(type, count, rank, 0), values(type, count, rank, 1),
                           values(type, count, rank, 2)});
        Tensors got{lay_out(values(type, count, 9), layout)};
        c10d::ScatterOptions scatter;
        scatter.rootRank = root;
        group.scatter(got, given, scatter)->wait();
        faults.expect(same(got[0], values(type, count, root, rank)),
                      name("scatter", type, layout, count, rank));

        Tensors outputs, inputs;
        for (int peer = 0; peer < 3; ++peer) {
          outputs.push_back(lay_out(values(type, count + peer, 9), layout));
          inputs.push_back(lay_out(values(type, count + rank, rank, peer), layout));
        }
        group.alltoall(outputs, inputs)->wait();
        for (int from = 0; from < 3; ++from)
          faults.expect(
              same(outputs[static_cast<std::size_t>(from)], values(type, count + from, from, rank)),
              name("all_to_all", type, layout, count, rank));
      }) == none);
}

TEST_CASE("all_to_all_single, equal and ragged rows") {
  Faults faults;
  const auto errors = errors_of_shm_ranks(3, [&](ProcessGroup& group) {
    const int rank = group.getRank();
    auto input = at::arange(6 * 2).view({6, 2}) + 100 * rank;
    auto output = at::zeros({6, 2}, at::kLong);
    std::vector<int64_t> equal;
    group.alltoall_base(output, input, equal, equal)->wait();
    for (int from = 0; from < 3; ++from)
      faults.expect(at::equal(output.narrow(0, 2 * from, 2),
                              at::arange(4).view({2, 2}) + 4 * rank + 100 * from),
                    "equal");
    // Rank r sends r, 0 and 6 - r rows.
    std::vector<int64_t> sent{rank, 0, 6 - rank};
    std::vector<int64_t> got = rank == 0   ? std::vector<int64_t>{0, 1, 2}
                               : rank == 1 ? std::vector<int64_t>{0, 0, 0}
                                           : std::vector<int64_t>{6, 5, 4};
    auto ragged = at::zeros({got[0] + got[1] + got[2], 2}, at::kLong);
    group.alltoall_base(ragged, input, got, sent)->wait();
    if (rank == 0)
      faults.expect(at::equal(ragged, at::cat({at::arange(2).view({1, 2}) + 100,
                                               at::arange(4).view({2, 2}) + 200})),
                    "ragged");
    if (rank == 2)
      faults.expect(ragged[0][0].item<int64_t>() == 0 && ragged[6][0].item<int64_t>() == 102 &&
                        ragged[11][0].item<int64_t>() == 204,
                    "ragged 2");
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(faults.all() == none);
}

TEST_CASE("reductions in place, to one rank and scattered, of every dtype that has them") {
  using Op = c10d::ReduceOp;
  struct Case {
    Op::RedOpType op;
    std::function<at::Tensor(const at::Tensor&)>
        right;  // of a tensor [ranks, count] in a wide type
  };
  const std::vector<Case> cases{
      {Op::SUM, [](const at::Tensor& all) { return all.sum(0); }},
      {Op::AVG,
       [](const at::Tensor& all) {
         const auto sum = all.sum(0);  // LibTorch divides complex numbers by complex ones
         return sum.is_complex() ? at::view_as_complex(at::view_as_real(sum) / all.size(0))
                                 : sum / all.size(0);
       }},
      {Op::PRODUCT, [](const at::Tensor& all) { return all.prod(0); }},
      {Op::MIN, [](const at::Tensor& all) { return all.amin(0); }},
      {Op::MAX, [](const at::Tensor& all) { return all.amax(0); }},
      {Op::BAND,
       [](const at::Tensor& all) { return all[0].bitwise_and(all[1]).bitwise_and(all[2]); }},
      {Op::BOR, [](const at::Tensor& all) { return all[0].bitwise_or(all[1]).bitwise_or(all[2]); }},
      {Op::BXOR,
       [](const at::Tensor& all) { return all[0].bitwise_xor(all[1]).bitwise_xor(all[2]); }},
  };
  for (const auto& each : cases) {
    CAPTURE(static_cast<int>(each.op));
    CHECK(
        faults_of_all(3, [&](Faults& faults, auto type, auto layout, auto count,
                             ProcessGroup& group) {
          const int rank = group.getRank();
          const auto element = accel::detail::element_of(type);
          const auto combine = accel::detail::Combine(static_cast<int>(each.op));
          if (!accel::detail::reduce_function(element, combine)) return;
          // Layouts meet the same code whatever the type.
          if (layout != Layout::plain && type != at::kFloat && type != at::kBFloat16) return;
          const auto wide = type == at::kBool          ? at::kBool
                            : at::isComplexType(type)  ? at::kComplexDouble
                            : at::isFloatingType(type) ? at::kDouble
                                                       : at::kLong;
          const auto right = [&](int64_t seed) {
            const auto all = at::stack({values(type, count, 0, seed).to(wide),
                                        values(type, count, 1, seed).to(wide),
                                        values(type, count, 2, seed).to(wide)});
            if (type == at::kBool &&
                (each.op == Op::SUM || each.op == Op::MAX || each.op == Op::BOR))
              return all.any(0);
            if (type == at::kBool && each.op != Op::BXOR) return all.all(0);
            // An average of whole numbers is rounded to fp32 before a narrower type.
            auto result = each.right(all);
            return at::isReducedFloatingType(type) ? result.to(at::kFloat).to(type)
                                                   : result.to(type);
          };
          c10d::AllreduceOptions all_reduce;
          all_reduce.reduceOp = each.op;
          Tensors tensors{lay_out(values(type, count, rank), layout)};
          group.allreduce(tensors, all_reduce)->wait();
          faults.expect(same(tensors[0], right(0)), name("all_reduce", type, layout, count, rank));

          c10d::ReduceOptions reduce;
          reduce.reduceOp = each.op;
          reduce.rootRank = count % 3;
          Tensors at_root{lay_out(values(type, count, rank), layout)};
          group.reduce(at_root, reduce)->wait();
          faults.expect(
              same(at_root[0], rank == reduce.rootRank ? right(0) : values(type, count, rank)),
              name("reduce", type, layout, count, rank));

          c10d::ReduceScatterOptions scatter;
          scatter.reduceOp = each.op;
          Tensors parts{lay_out(values(type, count, rank, 0), layout),
                        lay_out(values(type, count, rank, 1), layout),
                        lay_out(values(type, count, rank, 2), layout)};
          std::vector<Tensors> lists{parts};
          Tensors outputs{lay_out(values(type, count, 9), layout)};
          group.reduce_scatter(outputs, lists, scatter)->wait();
          faults.expect(same(outputs[0], right(rank)),
                        name("reduce_scatter", type, layout, count, rank));
          auto whole =
              at::cat({parts[0].reshape({-1}), parts[1].reshape({-1}), parts[2].reshape({-1})});
          auto base = lay_out(values(type, count, 9), layout);
          group._reduce_scatter_base(base, whole, scatter)->wait();
          faults.expect(same(base, right(rank)), name("base", type, layout, count, rank));
          Tensors bases{lay_out(values(type, count, 9), layout)}, wholes{whole};
          group.reduce_scatter_tensor_coalesced(bases, wholes, scatter)->wait();
          faults.expect(same(bases[0], right(rank)), name("coalesced", type, layout, count, rank));
        }) == none);
  }
}

TEST_CASE(
    "tensors that lie over each other: right values, or an error before anything is written") {
  Faults faults;
  const auto errors = errors_of_shm_ranks(
      2,
      [&](ProcessGroup& group) {
        const int rank = group.getRank();
        const auto error_of = [](auto&& call) -> std::string {
          try {
            call();
          } catch (const std::exception& error) {
            return error.what();
          }
          return {};
        };
        for (const int64_t count : {3, 5000}) {
          const auto mine = values(at::kFloat, count, rank);
          const auto both = at::cat({values(at::kFloat, count, 0), values(at::kFloat, count, 1)});
          // In place at the rank's own part, at the other's part, and across both.
          for (const int64_t begin : {rank * count, (1 - rank) * count, count / 2}) {
            auto whole = at::zeros({2 * count});
            auto input = whole.narrow(0, begin, count);
            input.copy_(mine);
            group._allgather_base(whole, input)->wait();
            faults.expect(at::equal(whole, both), fmt::format("all_gather at {}", begin));
            auto parts = both + rank;
            auto output = parts.narrow(0, begin, count);
            group._reduce_scatter_base(output, parts)->wait();
            faults.expect(at::equal(output, 2 * both.narrow(0, rank * count, count) + 1),
                          fmt::format("reduce_scatter at {}", begin));
            auto rows = both.clone();
            std::vector<int64_t> equal;
            group.alltoall_base(rows, rows, equal, equal)->wait();
            const auto own = values(at::kFloat, count, rank);
            faults.expect(at::equal(rows, at::cat({own, own})), "all_to_all in place");
          }
          auto expanded = at::zeros({1}).expand({count});
          Tensors list{expanded};
          faults.expect(error_of([&] { group.allreduce(list)->wait(); }).find("share memory") !=
                            std::string::npos,
                        "expanded output");
          auto output = at::zeros({count});
          std::vector<Tensors> twice{{output, output}};
          Tensors inputs{mine};
          faults.expect(error_of([&] {
                          group.allgather(twice, inputs)->wait();
                        }).find("share memory") != std::string::npos,
                        "the same output twice");
          // An expanded input is read.
          auto one = at::full({1}, 7.0f).expand({count});
          auto all = at::zeros({2 * count});
          group._allgather_base(all, one)->wait();
          faults.expect(at::equal(all, at::full({2 * count}, 7.0f)), "expanded input");
        }
      },
      std::chrono::milliseconds(60'000), small);
  for (const auto& error : errors) CHECK(error == "");
  CHECK(faults.all() == none);
}

TEST_CASE("what has no value is refused where it is called, and the group goes on") {
  Faults faults;
  const auto errors = errors_of_shm_ranks(2, [&](ProcessGroup& group) {
    const auto refuses = [&](at::Tensor tensor, c10d::ReduceOp::RedOpType op, const char* said) {
      Tensors list{std::move(tensor)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      try {
        group.allreduce(list, options)->wait();
        faults.expect(false, said);
      } catch (const std::exception& error) {
        faults.expect(std::string(error.what()).find(said) != std::string::npos, error.what());
      }
    };
    refuses(at::ones({2}, at::kInt), c10d::ReduceOp::AVG, "convert to a floating type first");
    refuses(at::ones({2}), c10d::ReduceOp::BXOR, "all_reduce of Float values by xor");
    refuses(at::ones({2}, at::kComplexFloat), c10d::ReduceOp::MAX, "by max");
    refuses(at::ones({2}).to(at::kFloat8_e5m2), c10d::ReduceOp::SUM, "by sum");
    refuses(at::ones({2}).to_sparse(), c10d::ReduceOp::SUM, "takes strided CPU tensors");
    Tensors list{at::ones({2})};
    group.allreduce(list)->wait();
    faults.expect(at::equal(list[0], at::full({2}, 2.0f)), "goes on");
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(faults.all() == none);
}
