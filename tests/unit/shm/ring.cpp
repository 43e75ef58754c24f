// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives through shared memory against what one thread computes: every operation, sizes around
// the edges of a piece, 2 to 4 ranks, random schedules; what is said where ranks differ.
#include "support/ring_ranks.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <chrono>
#include <random>
#include <span>

using accel::detail::Collective;
using accel::detail::Combine;
using accel::detail::Element;
using accel::detail::RingOptions;
using accel::detail::ShmRing;
using accel::test::errors_of_ring;
using accel::test::Guarded;
using Catch::Matchers::ContainsSubstring;
using Kind = Collective::Kind;
using Bytes = std::vector<std::byte>;
using Numbers = std::vector<float>;
using namespace std::chrono_literals;

namespace {

constexpr auto patient = 60'000ms;
const RingOptions small{.slot_bytes = 4096, .slots = 3};

/// Rank's values: whole numbers, so that any order of a sum would give the same.
Numbers values_of(int rank, std::size_t count, unsigned seed) {
  std::mt19937 random(seed * 101 + static_cast<unsigned>(rank));
  Numbers values(count);
  for (auto& value : values) value = static_cast<float>(random() % 1000);
  return values;
}

std::byte* bytes_of(Numbers& values) { return reinterpret_cast<std::byte*>(values.data()); }
Numbers numbers_of(const Bytes& bytes) {
  Numbers values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The call, and of what.
struct Case {
  Kind kind;
  std::size_t count;  ///< of each rank, or of each pair of ranks
  int root = 0;
  unsigned seed = 0;
};

Numbers row(int from, int to, const Case& each) {
  return values_of(from,
                   each.count + static_cast<std::size_t>(
                                    each.kind == Kind::all_to_all ? (from * 3 + to) % 5 : 0),
                   each.seed + static_cast<unsigned>(to));
}
Numbers sum_of(int size, int to, const Case& each) {
  Numbers sum = row(0, to, each);
  for (int rank = 1; rank < size; ++rank) {
    const auto next = row(rank, to, each);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
  }
  return sum;
}
void append(Numbers& all, const Numbers& more) { all.insert(all.end(), more.begin(), more.end()); }

/// What the rank has afterwards, by one thread.
Numbers expected(int rank, int size, const Case& each) {
  Numbers all;
  switch (each.kind) {
    case Kind::barrier: break;
    case Kind::broadcast: return row(each.root, 0, each);
    case Kind::all_reduce: return sum_of(size, 0, each);
    case Kind::reduce: return rank == each.root ? sum_of(size, 0, each) : row(rank, 0, each);
    case Kind::all_gather:
      for (int from = 0; from < size; ++from) append(all, row(from, 0, each));
      break;
    case Kind::gather:
      for (int from = 0; rank == each.root && from < size; ++from) append(all, row(from, 0, each));
      break;
    case Kind::scatter: return row(each.root, rank, each);
    case Kind::reduce_scatter: return sum_of(size, rank, each);
    case Kind::all_to_all:
      for (int from = 0; from < size; ++from) append(all, row(from, rank, each));
      break;
  }
  return all;
}

/// Runs it, and gives what the rank has; nothing where a byte beside the output was touched.
Numbers run(ShmRing& ring, const Case& each) {
  const int rank = ring.rank(), size = ring.size();
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<Numbers> inputs;
  for (int to = 0; to < size; ++to) inputs.push_back(row(rank, to, each));
  std::vector<const std::byte*> given;
  std::vector<std::size_t> given_bytes;
  for (auto& input : inputs) {
    given.push_back(bytes_of(input));
    given_bytes.push_back(input.size() * sizeof(float));
  }
  std::vector<Guarded> outputs;
  std::vector<std::byte*> wanted;
  std::vector<std::size_t> wanted_bytes;
  for (int from = 0; from < size; ++from) {
    const auto bytes =
        (each.kind == Kind::all_to_all ? row(from, rank, each).size() : each.count) * sizeof(float);
    outputs.emplace_back(bytes);
    wanted_bytes.push_back(bytes);
  }
  for (auto& output : outputs) wanted.push_back(output.data());
  if (each.count > 0) std::memcpy(wanted[0], given[0], each.count * sizeof(float));  // in place
  std::size_t filled = 1;
  const auto f32 = Element::f32;
  switch (each.kind) {
    case Kind::barrier: ring.barrier(patient); return {};
    case Kind::broadcast: ring.broadcast(wanted[0], each.count, f32, each.root, patient); break;
    case Kind::all_reduce:
      ring.all_reduce(wanted[0], each.count, f32, Combine::sum, patient);
      break;
    case Kind::reduce:
      ring.reduce(wanted[0], each.count, f32, Combine::sum, each.root, patient);
      break;
    case Kind::all_gather:
      ring.all_gather(wanted, given[0], each.count, f32, patient);
      filled = ranks;
      break;
    case Kind::gather:
      ring.gather(wanted, given[0], each.count, f32, each.root, patient);
      filled = rank == each.root ? ranks : 0;
      break;
    case Kind::scatter: ring.scatter(wanted[0], given, each.count, f32, each.root, patient); break;
    case Kind::reduce_scatter:
      ring.reduce_scatter(wanted[0], given, each.count, f32, Combine::sum, patient);
      break;
    case Kind::all_to_all:
      ring.all_to_all(wanted, wanted_bytes, given, given_bytes, patient);
      filled = ranks;
      break;
  }
  Numbers all;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].is_intact()) return {};
    if (i < filled) append(all, numbers_of(outputs[i].values()));
  }
  return all;
}

/// How many of the cases came out wrong, over all ranks; those that threw count too.
std::size_t failures(int size, const RingOptions& options, const std::vector<Case>& cases,
                     unsigned jitter = 0) {
  std::atomic<std::size_t> wrong{0};
  const auto errors = errors_of_ring(size, options, [&](ShmRing& ring) {
    std::mt19937 random(jitter + static_cast<unsigned>(ring.rank()));
    for (const auto& each : cases) {
      if (jitter > 0 && random() % 8 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      if (run(ring, each) != expected(ring.rank(), ring.size(), each)) ++wrong;
    }
  });
  for (const auto& error : errors) wrong += !error.empty();
  return wrong;
}

constexpr Kind kinds[] = {Kind::barrier, Kind::broadcast,      Kind::all_reduce,
                          Kind::reduce,  Kind::all_gather,     Kind::gather,
                          Kind::scatter, Kind::reduce_scatter, Kind::all_to_all};

}  // namespace

TEST_CASE("every collective gives what one thread computes, at every edge of a piece") {
  for (const int size : {1, 2, 3, 4}) {
    std::vector<Case> cases;
    for (const auto kind : kinds)
      for (const std::size_t count :
           {0, 1, 2, 15, 16, 17, 255, 256, 257, 341, 342, 511, 512, 513, 1023, 1024, 1025, 5000})
        cases.push_back({kind, count, static_cast<int>(count) % size});
    CAPTURE(size);
    CHECK(failures(size, small, cases) == 0);
  }
}

TEST_CASE("large tensors, with the memory of a real group") {
  for (const int size : {2, 3}) {
    std::vector<Case> cases;
    for (const auto kind : kinds)
      for (const std::size_t count : {16'383, 16'385, 262'144, 262'147, 700'001})
        cases.push_back({kind, count, 1});
    CAPTURE(size);
    CHECK(failures(size, {}, cases) == 0);
  }
}

TEST_CASE("data in the arenas of all ranks is reduced there, and of some ranks through the slots") {
  for (const int size : {1, 2, 3, 4})
    for (const int outside : {-1, 0, 1}) {  // this rank's data lies elsewhere
      std::atomic<int> wrong{0};
      const RingOptions options{.slot_bytes = 8192, .slots = 3, .arena_bytes = 4 << 20};
      const auto errors = errors_of_ring(size, options, [&](ShmRing& ring) {
        std::size_t offset = static_cast<std::size_t>(ring.rank()) * 4096;  // not the same on each
        for (const std::size_t count : {1, 16'384, 16'385, 50'001, 300'000}) {
          const Case each{Kind::all_reduce, count};
          auto own = row(ring.rank(), 0, each);
          std::vector<std::byte> elsewhere(count * sizeof(float));
          auto* data = ring.rank() == outside ? elsewhere.data() : ring.arena().data() + offset;
          std::memcpy(data, own.data(), count * sizeof(float));
          ring.all_reduce(data, count, Element::f32, Combine::sum, patient);
          std::memcpy(own.data(), data, count * sizeof(float));
          wrong += own != sum_of(ring.size(), 0, each);
          offset += (count * sizeof(float) + 63) / 64 * 64;
        }
      });
      CAPTURE(size, outside);
      for (const auto& error : errors) CHECK(error == "");
      CHECK(wrong == 0);
    }
}

TEST_CASE("random schedules of collectives, with ranks that dawdle") {
#ifdef __SANITIZE_THREAD__
  constexpr unsigned draws = 10;
#else
  constexpr unsigned draws = 30;
#endif
  for (unsigned draw = 1; draw <= draws; ++draw) {
    std::mt19937 random(draw);
    const int size = 2 + static_cast<int>(random() % 3);
    std::vector<Case> cases;
    for (int i = 0; i < 60; ++i)
      cases.push_back({kinds[random() % std::size(kinds)], random() % 3000,
                       static_cast<int>(random() % static_cast<unsigned>(size)),
                       static_cast<unsigned>(random())});
    RingOptions options{.slot_bytes = 4096 * (1 + random() % 3),
                        .slots = 3 + static_cast<std::uint32_t>(random() % 4)};
    if (draw % 3 == 0) options.patience = {.spins = 0, .awake = {}};  // only the futex
    CAPTURE(draw, size);
    CHECK(failures(size, options, cases, draw) == 0);
  }
}

TEST_CASE("ranks that call different things are told so on all of them") {
  struct Different {
    void (*of_last)(ShmRing&, std::byte*);
    const char* said;
  };
  const Different different[] = {
      {[](ShmRing& ring, std::byte* data) { ring.broadcast(data, 6, Element::f32, 0, patient); },
       "rank 2: broadcast of 6 x float32 from rank 0"},
      {[](ShmRing& ring, std::byte* data) {
         ring.all_reduce(data, 5, Element::f32, Combine::sum, patient);
       },
       "rank 2: all_reduce (sum) of 5 x float32"},
      {[](ShmRing& ring, std::byte* data) {
         ring.all_reduce(data, 6, Element::i32, Combine::sum, patient);
       },
       "rank 2: all_reduce (sum) of 6 x int32"},
      {[](ShmRing& ring, std::byte* data) {
         ring.all_reduce(data, 6, Element::f32, Combine::max, patient);
       },
       "rank 2: all_reduce (max) of 6 x float32"},
  };
  for (const auto& [of_last, said] : different) {
    const auto errors = errors_of_ring(3, small, [&](ShmRing& ring) {
      Numbers data(6);
      ring.barrier(patient);
      if (ring.rank() == 2)
        of_last(ring, bytes_of(data));
      else
        ring.all_reduce(bytes_of(data), 6, Element::f32, Combine::sum, patient);
    });
    for (const auto& error : errors) {
      CHECK_THAT(error, ContainsSubstring(said));
      CHECK_THAT(error, ContainsSubstring("rank 0: all_reduce (sum) of 6 x float32"));
      CHECK_THAT(error, ContainsSubstring("collective 2 of the group"));
    }
  }
}

TEST_CASE("a rank that leaves, stops or is late is named") {
  const auto left = errors_of_ring(3, small, [](ShmRing& ring) {
    ring.barrier(patient);
    if (ring.rank() == 1) return;
    ring.barrier(patient);
  });
  CHECK(left[1].empty());
  for (const int rank : {0, 2})
    CHECK_THAT(left[static_cast<std::size_t>(rank)],
               ContainsSubstring("rank 1 has left the group"));

  const auto stopped = errors_of_ring(2, small, [](ShmRing& ring) {
    if (ring.rank() == 1) ring.peers().stop("the disk is gone");
    if (ring.rank() == 0) ring.barrier(patient);
  });
  CHECK_THAT(stopped[0], ContainsSubstring("rank 1 stopped: the disk is gone"));

  std::atomic<bool> over{false};
  const auto late = errors_of_ring(2, small, [&](ShmRing& ring) {
    ring.barrier(patient);
    if (ring.rank() == 1) {
      while (!over) std::this_thread::sleep_for(1ms);
      return;
    }
    try {
      ring.barrier(300ms);
    } catch (...) {
      over = true;
      throw;
    }
  });
  CHECK_THAT(late[0],
             ContainsSubstring("waited 0.3 s in collective 2 of the group (barrier); rank 1 "
                               "is at collective 1: barrier"));
}

TEST_CASE("lengths of all_to_all that do not match are told before anything is written") {
  const auto errors = errors_of_ring(2, small, [](ShmRing& ring) {
    Numbers input(8, 1.0f);
    Guarded first(16), second(16);
    const std::vector<std::byte*> outputs{first.data(), second.data()};
    const std::vector<const std::byte*> inputs{bytes_of(input), bytes_of(input)};
    const std::vector<std::size_t> sixteen{16, 16}, other{16, 12};
    ring.all_to_all(outputs, sixteen, inputs, ring.rank() == 0 ? other : sixteen, patient);
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("rank 0 sends 12 bytes to rank 1, which expects 16"));
}
