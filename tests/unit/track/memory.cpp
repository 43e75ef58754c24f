// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/memory.hpp>
#include <catch2/catch_test_macros.hpp>

#include <sys/mman.h>

#include <cstring>

TEST_CASE("memory that is touched is resident, and stays in the peak when it is gone") {
  constexpr std::size_t size = 64u << 20;
  const auto before = accel::process_memory();
  REQUIRE(before.resident > 0);
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(block != MAP_FAILED);
  std::memset(block, 1, size);
  const auto during = accel::process_memory();
  ::munmap(block, size);
  const auto after = accel::process_memory();

  // The kernel counts in batches of pages a thread: not to the byte.
  constexpr std::size_t slack = 8u << 20;
  CHECK(during.resident + slack >= before.resident + size);
  CHECK(after.resident <= during.resident - size + slack);
  CHECK(after.peak + slack >= during.resident);
  CHECK(after.peak >= after.resident);
}

TEST_CASE("bytes are told in powers of 1000, with one digit") {
  CHECK(accel::format_bytes(0) == "0 B");
  CHECK(accel::format_bytes(999) == "999 B");
  CHECK(accel::format_bytes(1000) == "1.0 kB");
  CHECK(accel::format_bytes(128'400'000) == "128.4 MB");
  CHECK(accel::format_bytes(999'949'999) == "999.9 MB");
  CHECK(accel::format_bytes(999'950'000) == "1.0 GB");
  CHECK(accel::format_bytes(~std::uint64_t{0}) == "18.4 EB");
}
