// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_arena.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace accel::detail {
namespace {

constexpr std::size_t page = 4096;

}  // namespace

ShmArena::ShmArena(std::span<std::byte> memory) : memory_(memory) {
  if (memory.size() >= page) free_.emplace(0, memory.size() / page * page);
}

std::byte* ShmArena::allocate(std::size_t bytes) {
  const auto length = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
  const std::scoped_lock lock(mutex_);
  const auto found =
      std::ranges::find_if(free_, [&](const auto& each) { return each.second >= length; });
  if (found == free_.end()) return nullptr;
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > length) free_.emplace(offset + length, available - length);
  taken_.emplace(offset, length);
  used_ += length;
  return memory_.data() + offset;
}

void ShmArena::release(std::byte* block) {
  const std::scoped_lock lock(mutex_);
  const auto found = taken_.find(static_cast<std::size_t>(block - memory_.data()));
  if (found == taken_.end()) return;
  auto [offset, length] = *found;
  taken_.erase(found);
  used_ -= length;
  ::madvise(memory_.data() + offset, length, MADV_REMOVE);
  const auto next = free_.find(offset + length);
  if (next != free_.end()) {
    length += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_.emplace(offset, length);
}

std::size_t ShmArena::used() const {
  const std::scoped_lock lock(mutex_);
  return used_;
}

}  // namespace accel::detail
