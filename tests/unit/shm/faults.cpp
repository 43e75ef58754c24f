// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes that share memory, one of which is killed, stopped, or calls something else at a random
// moment: the others name it in time, and nothing is left behind.
#include <accel/comm/shm_mailbox.hpp>
#include <accel/comm/shm_ring.hpp>
#include <accel/comm/shm_segment.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

using Catch::Matchers::ContainsSubstring;
using Clock = std::chrono::steady_clock;
using namespace accel::detail;
using namespace std::chrono_literals;

namespace {

constexpr int ranks = 3;
constexpr auto deadline = 3000ms;

enum class Fault { kill, stop, other_call };

/// What a rank does until it cannot: collectives and messages of random sizes, the same on each.
void work(const std::string& server, int rank, unsigned seed, int differs_at) {
  const RingOptions options{.slot_bytes = 8192, .slots = 3};
  const auto ring_bytes = ShmRing::bytes_needed(ranks, options);
  const auto bytes = ring_bytes + ShmMailbox::bytes_needed(ranks);
  const SharedSegment segment(fetch_descriptor(server, Clock::now() + 10s), bytes);
  ShmRing ring(segment.data(), rank, ranks, options);
  ring.barrier(10s);
  ring.peers().watch();
  std::mt19937 random(seed);
  std::vector<float> data(20'000, 1.0f), all(ranks * data.size());
  for (int call = 0;; ++call) {
    const auto count = random() % data.size();
    const auto kind = random() % 3 + (call == differs_at ? 1 : 0);
    auto* bytes_of = reinterpret_cast<std::byte*>(data.data());
    std::vector<std::byte*> parts;
    for (int from = 0; from < ranks; ++from)
      parts.push_back(
          reinterpret_cast<std::byte*>(all.data() + static_cast<std::size_t>(from) * count));
    if (kind == 0) ring.all_reduce(bytes_of, count, Element::f32, Combine::max, deadline);
    if (kind == 1) ring.all_gather(parts, bytes_of, count, Element::f32, deadline);
    if (kind == 2)
      ring.broadcast(bytes_of, count, Element::f32, static_cast<int>(count % ranks), deadline);
    if (kind == 3) ring.barrier(deadline);
  }
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

struct Outcome {
  std::vector<std::string> said;  ///< by each rank; nothing by the victim
  std::chrono::milliseconds after{};
  int victim = 0;
};

Outcome run(Fault fault, unsigned seed) {
  std::mt19937 random(seed);
  Outcome outcome{.said = std::vector<std::string>(ranks),
                  .victim = static_cast<int>(random() % ranks)};
  const auto differs_at = fault == Fault::other_call ? static_cast<int>(random() % 200) : -1;
  const RingOptions options{.slot_bytes = 8192, .slots = 3};
  const auto memory =
      make_shared_memory(ShmRing::bytes_needed(ranks, options) + ShmMailbox::bytes_needed(ranks));
  DescriptorServer server;
  std::vector<pid_t> processes;
  std::vector<int> reports;
  for (int rank = 0; rank < ranks; ++rank) {
    int report[2];
    REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
    processes.push_back(::fork());
    if (processes.back() == 0) {
      ::alarm(30);
      std::string error;
      try {
        work(server.name(), rank, seed, rank == outcome.victim ? differs_at : -1);
      } catch (const std::exception& problem) {
        error = problem.what();
      }
      const auto written = ::write(report[1], error.data(), error.size());
      ::_exit(written < 0 ? 1 : 0);
    }
    ::close(report[1]);
    reports.push_back(report[0]);
  }
  server.serve(memory, ranks, Clock::now() + 10s);
  const auto victim = processes[static_cast<std::size_t>(outcome.victim)];
  if (fault != Fault::other_call) {
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 100'000));
    ::kill(victim, fault == Fault::kill ? SIGKILL : SIGSTOP);
  }
  const auto start = Clock::now();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (rank == outcome.victim && fault == Fault::stop) continue;
    char text[4096];
    for (ssize_t got = 0; (got = ::read(reports[index], text, sizeof text)) > 0;)
      outcome.said[index].append(text, static_cast<std::size_t>(got));
  }
  outcome.after = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
  ::kill(victim, SIGKILL);
  for (const auto process : processes) ::waitpid(process, nullptr, 0);
  for (const auto report : reports) ::close(report);
  return outcome;
}

}  // namespace

TEST_CASE(
    "a rank that is killed, stopped, or calls something else is named on the others in time") {
  const char* asked = std::getenv("ACCEL_SHM_FAULTS");
  const unsigned faults = asked ? static_cast<unsigned>(std::atoi(asked)) : 21;
  const auto before = open_descriptors();
  for (unsigned draw = 0; draw < faults; ++draw) {
    const auto fault = static_cast<Fault>(draw % 3);
    const auto outcome = run(fault, 1000 + draw);
    CAPTURE(draw, static_cast<int>(fault), outcome.victim, outcome.after.count());
    const auto name = "rank " + std::to_string(outcome.victim);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == outcome.victim && fault != Fault::other_call) continue;
      const auto& said = outcome.said[static_cast<std::size_t>(rank)];
      if (fault == Fault::kill) CHECK_THAT(said, ContainsSubstring("of " + name + " has ended"));
      if (fault == Fault::stop)
        CHECK_THAT(said,
                   ContainsSubstring(name + " is at collective") && ContainsSubstring("waited"));
      if (fault == Fault::other_call)
        CHECK_THAT(said,
                   ContainsSubstring("not at the same call") && ContainsSubstring(name + ": "));
    }
    // Death within a second, the rest at the deadline; a loaded machine needs more.
    CHECK(outcome.after < (fault == Fault::stop ? deadline + 5s : 6s));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("shared memory has no name, and no other size fits") {
  const auto memory = make_shared_memory(8192);
  const auto link =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(memory.number()));
  CHECK_THAT(link.string(), ContainsSubstring("memfd:") && ContainsSubstring("(deleted)"));
  CHECK_THROWS_WITH(SharedSegment(memory, 4096), ContainsSubstring("share 8192 bytes"));
  const SharedSegment one(memory, 8192), other(memory, 8192);
  one.data()[5] = std::byte{7};
  CHECK(other.data()[5] == std::byte{7});
}

TEST_CASE("nobody who does not come is waited for longer than the deadline") {
  DescriptorServer server;
  const auto memory = make_shared_memory(4096);
  CHECK_THROWS_WITH(server.serve(memory, 1, Clock::now() + 50ms),
                    ContainsSubstring("0 of 1 ranks"));
  CHECK_THROWS_WITH(fetch_descriptor("accel/nobody", Clock::now() + 50ms),
                    ContainsSubstring("connect failed"));
}
