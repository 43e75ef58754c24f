// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_arena.hpp>
#include <accel/comm/shm_segment.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstring>
#include <random>
#include <vector>

using accel::detail::make_shared_memory;
using accel::detail::SharedSegment;
using accel::detail::ShmArena;

TEST_CASE("blocks do not overlap, come back, and join") {
  constexpr std::size_t size = 64 * 4096;
  const auto memory = make_shared_memory(size);
  const SharedSegment segment(memory, size);
  ShmArena arena({segment.data(), size});
  std::mt19937 random(1);
  struct Block {
    std::byte* place;
    std::size_t bytes;
    int mark;
  };
  std::vector<Block> blocks;
  int refused = 0, wrong = 0;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0) {
      const auto bytes = random() % 30'000;
      if (auto* place = arena.allocate(bytes)) {
        std::memset(place, i % 100, bytes);
        blocks.push_back({place, bytes, i % 100});
      } else {
        ++refused;
      }
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto [place, bytes, mark] = blocks.back();
      for (std::size_t at = 0; at < bytes; ++at) wrong += place[at] != static_cast<std::byte>(mark);
      arena.release(place);
      blocks.pop_back();
    }
  }
  CHECK(wrong == 0);
  CHECK(refused > 0);
  for (const auto& block : blocks) arena.release(block.place);
  CHECK(arena.used() == 0);
  auto* all = arena.allocate(size);  // one block again
  REQUIRE(all == segment.data());
  CHECK(all[5000] == std::byte{0});  // its pages went back to the system
  CHECK(arena.allocate(1) == nullptr);
}

TEST_CASE("an arena of nothing has nothing") {
  ShmArena arena({});
  CHECK(arena.allocate(1) == nullptr);
}
