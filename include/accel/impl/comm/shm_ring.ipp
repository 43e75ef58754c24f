// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A step k of a collective, on each rank: wait until every rank is done with slot k - slots, fill
// the slot, publish `staged`; wait for the others' `staged`, use their pieces, publish `taken`. The
// counts of steps are the same on every rank, so that they need not be sent.
#include <accel/comm/shm_ring.hpp>

#include <accel/detail/error.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace accel::detail {
namespace {

constexpr std::size_t cache_line = 64;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}
std::uint32_t steps_for(std::size_t bytes, std::size_t piece) {
  return static_cast<std::uint32_t>(std::max<std::size_t>(1, (bytes + piece - 1) / piece));
}
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

/// A piece of `whole` bytes.
struct Piece {
  std::size_t begin = 0, bytes = 0;
};
Piece piece_of(std::size_t whole, std::size_t piece, std::uint32_t step) {
  const auto begin = std::min(whole, piece * step);
  return {begin, std::min(piece, whole - begin)};
}

/// Reduces `bytes` of the inputs into `out`, and copies the result to each of `copies`: in blocks that
/// stay in the first cache between the two.
void reduce_and_copy(Reduce function, std::size_t width, std::byte* out,
                     const std::vector<const std::byte*>& inputs,
                     const std::vector<std::byte*>& copies, std::size_t bytes) {
  constexpr std::size_t block = 16 << 10;
  auto from = inputs;
  for (std::size_t offset = 0; offset < bytes; offset += block) {
    const auto length = std::min(block, bytes - offset);
    for (std::size_t each = 0; each < inputs.size(); ++each) from[each] = inputs[each] + offset;
    function(out + offset, from, length / width, inputs.size());
    for (auto* copy : copies) copy_bytes(copy + offset, out + offset, length);
  }
}

constexpr int everybody = -1;
constexpr std::size_t small_bytes = 64 << 10;  ///< up to here every rank reduces all itself
constexpr std::size_t small_bytes_of_two = 1 << 20;

}  // namespace

std::string Collective::text() const {
  constexpr std::array names{"barrier", "broadcast", "all_reduce",     "reduce",    "all_gather",
                             "gather",  "scatter",   "reduce_scatter", "all_to_all"};
  std::string text = names.at(static_cast<std::size_t>(kind));
  if (kind == Kind::barrier || kind == Kind::all_to_all) return text;
  const bool reduces =
      kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
  if (reduces) text += fmt::format(" ({})", name_of(combine));
  text += fmt::format(" of {} x {}", count, name_of(element));
  if (kind == Kind::broadcast || kind == Kind::scatter) text += fmt::format(" from rank {}", root);
  if (kind == Kind::reduce || kind == Kind::gather) text += fmt::format(" to rank {}", root);
  return text;
}

/// What a rank says of the collective that it is in. Two of each: a rank may be one collective ahead
/// of another that has not read this yet, and never two.
struct ShmRing::Announcement {
  std::atomic<std::uint64_t> sequence, operation, count;
  /// Of the data in the arena, counted from 1; 0 where it lies elsewhere.
  std::atomic<std::uint64_t> place;

  void set(const Collective& mine, std::uint64_t number, std::uint64_t where) {
    place.store(where, std::memory_order_relaxed);
    operation.store(static_cast<std::uint64_t>(mine.kind) |
                        static_cast<std::uint64_t>(mine.element) << 8 |
                        static_cast<std::uint64_t>(mine.combine) << 16 |
                        static_cast<std::uint64_t>(mine.root) << 32,
                    std::memory_order_relaxed);
    count.store(mine.count, std::memory_order_relaxed);
    sequence.store(number, std::memory_order_relaxed);
  }
  [[nodiscard]] Collective get() const {
    const auto packed = operation.load(std::memory_order_relaxed);
    return {static_cast<Collective::Kind>(packed & 0xff), static_cast<Element>(packed >> 8 & 0xff),
            static_cast<Combine>(packed >> 16 & 0xff), static_cast<std::uint32_t>(packed >> 32),
            count.load(std::memory_order_relaxed)};
  }
};

struct ShmRing::Control {
  WaitWord staged;   ///< steps whose piece lies in the slot
  WaitWord reduced;  ///< steps whose section this rank has reduced, in its slot
  WaitWord taken;    ///< steps whose pieces this rank has read
  alignas(128) std::array<Announcement, 2> announced;
};

namespace {

/// Where things lie in the shared memory.
struct Layout {
  std::size_t control, lengths, slots, arenas, end;
  Layout(int size, std::size_t control_bytes, const RingOptions& options) {
    const auto ranks = static_cast<std::size_t>(size);
    control = round_up(ShmPeers::bytes_needed(size), 4096);
    lengths = control + round_up(control_bytes * ranks, 4096);
    slots = lengths + round_up(2 * ranks * 2 * ranks * sizeof(std::uint64_t), 4096);
    arenas = slots + ranks * options.slots * options.slot_bytes;
    end = arenas + ranks * round_up(options.arena_bytes, 4096);
  }
};

}  // namespace

std::size_t ShmRing::bytes_needed(int size, const RingOptions& options) {
  return Layout(size, sizeof(Control), options).end;
}

ShmRing::ShmRing(std::byte* memory, int rank, int size, const RingOptions& options)
    : options_(options), peers_(memory, rank, size) {
  const Layout layout(size, sizeof(Control), options);
  controls_ = reinterpret_cast<Control*>(memory + layout.control);
  lengths_ = reinterpret_cast<std::uint64_t*>(memory + layout.lengths);
  slots_ = memory + layout.slots;
  arenas_ = memory + layout.arenas;
}

ShmRing::Control& ShmRing::control(int rank) const { return controls_[rank]; }
std::uint64_t* ShmRing::lengths_of(int rank) const {
  const auto row = static_cast<std::size_t>(rank) * 2 + sequence_ % 2;
  return lengths_ + row * 2 * static_cast<std::size_t>(size());
}
std::byte* ShmRing::slot(int rank, std::uint32_t step) const {
  const auto index = static_cast<std::size_t>(rank) * options_.slots + step % options_.slots;
  return slots_ + index * options_.slot_bytes;
}
std::byte* ShmRing::arena_of(int rank) const {
  return arenas_ + static_cast<std::size_t>(rank) * round_up(options_.arena_bytes, 4096);
}
std::span<std::byte> ShmRing::arena() const { return {arena_of(rank()), options_.arena_bytes}; }
std::uint64_t ShmRing::place_in_arena(const std::byte* data, std::size_t bytes) const {
  const auto* begin = arena_of(rank());
  const bool inside = data >= begin && data + bytes <= begin + options_.arena_bytes;
  return inside ? static_cast<std::uint64_t>(data - begin) + 1 : 0;
}
std::size_t ShmRing::share_bytes() const {
  return options_.slot_bytes / static_cast<std::size_t>(size()) / cache_line * cache_line;
}

/// Every other rank, beginning with the next one: not all at the same memory at once.
template <class Do>
void ShmRing::for_peers(Do&& act) const {
  for (int distance = 1; distance < size(); ++distance) act((rank() + distance) % size());
}

void ShmRing::announce(const Collective& mine, Timeout timeout, std::uint64_t place) {
  peers_.require_running();
  current_ = mine;
  deadline_ = std::chrono::steady_clock::now() + timeout;
  timeout_ = timeout;
  ++sequence_;
  control(rank()).announced[sequence_ % 2].set(mine, sequence_, place);
}

void ShmRing::compare(const Collective& mine) {
  bool same = true;
  for_peers([&](int peer) { same = same && control(peer).announced[sequence_ % 2].get() == mine; });
  if (!same) fail_as_different(mine);
}

/// Tells the others why this rank stops, and throws it.
void ShmRing::stop_and_fail(const std::string& why) {
  peers_.stop(why);
  throw Error(ErrorCategory::collective, why);
}

void ShmRing::fail_as_different(const Collective& mine) {
  std::vector<std::string> calls;
  for (int each = 0; each < size(); ++each)
    calls.push_back(
        fmt::format("rank {}: {}", each,
                    (each == rank() ? mine : control(each).announced[sequence_ % 2].get()).text()));
  stop_and_fail(
      fmt::format("accel: rank {} of {}: ranks are not at the same call ({}), collective {} of the "
                  "group. Every rank must make the same collective calls in the same order; with "
                  "ACCEL_DEBUG=true accelerators tell from which lines",
                  rank(), size(), fmt::join(calls, "; "), sequence_));
}

std::string ShmRing::place_of(int peer) const {
  const Announcement* latest = nullptr;
  for (const auto& each : control(peer).announced)
    if (const auto number = each.sequence.load(std::memory_order_relaxed);
        !latest || number > latest->sequence.load(std::memory_order_relaxed))
      latest = &each;
  const auto number = latest->sequence.load(std::memory_order_relaxed);
  if (number == 0) return fmt::format("rank {} has not begun", peer);
  return fmt::format("rank {} is at collective {}: {}", peer, number, latest->get().text());
}

void ShmRing::await(int peer, WaitWord Control::* which, std::uint32_t target) {
  auto& word = control(peer).*which;
  if (word.reached(target)) return;
  wait_until(word, target, options_.patience, [&] {
    try {
      peers_.require(peer);
      if (std::chrono::steady_clock::now() < deadline_) return;
      fail(ErrorCategory::collective,
           "accel: rank {} of {} waited {:.1f} s in collective {} of the group ({}); {}. Is it "
           "stopped "
           "or slow, or does it call something else? collective_timeout is how long to wait",
           rank(), size(), static_cast<double>(timeout_.count()) / 1000.0, sequence_,
           current_.text(), place_of(peer));
    } catch (const Error& error) {
      if (word.reached(target)) return;  // it did its part before it left
      peers_.stop(error.what());
      throw;
    }
  });
}

void ShmRing::await_free(std::uint32_t step) {
  for_peers([&](int peer) { await(peer, &Control::taken, step - options_.slots + 1); });
}

void ShmRing::finish(std::uint32_t steps) {
  step_ += steps;
  // A rank that never waits for `reduced` moves it on all the same, so that signed differences hold.
  control(rank()).reduced.value.store(step_, std::memory_order_release);
}

template <class Fill, class Take>
void ShmRing::run_steps(const Collective& mine, std::uint32_t steps, int source, Timeout timeout,
                        Fill&& fill, Take&& take) {
  announce(mine, timeout);
  auto& own = control(rank());
  const auto stage = [&](std::uint32_t step) {
    await_free(step_ + step);
    fill(step, slot(rank(), step_ + step));
    own.staged.publish(step_ + step + 1);
  };
  stage(0);
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) stage(step + 1);
    for_peers([&](int peer) {
      if (step == 0 || source == everybody || source == peer)
        await(peer, &Control::staged, step_ + step + 1);
    });
    if (step == 0) compare(mine);
    take(step);
    own.taken.publish(step_ + step + 1);
  }
  finish(steps);
}

void ShmRing::barrier(Timeout timeout) {
  run_steps({Collective::Kind::barrier}, 1, everybody, timeout, [](auto, auto) {}, [](auto) {});
}

void ShmRing::broadcast(std::byte* data, std::size_t count, Element element, int root,
                        Timeout timeout) {
  const auto bytes = count * size_of(element), piece = options_.slot_bytes / 2;
  run_steps(
      {Collective::Kind::broadcast, element, {}, static_cast<std::uint32_t>(root), count},
      steps_for(bytes, piece), root, timeout,
      [&](std::uint32_t step, std::byte* to) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        if (rank() == root) copy_bytes(to, data + begin, length);
      },
      [&](std::uint32_t step) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        if (rank() != root) copy_bytes(data + begin, slot(root, step_ + step), length);
      });
}

void ShmRing::all_reduce(std::byte* data, std::size_t count, Element element, Combine combine,
                         Timeout timeout) {
  const Collective mine{Collective::Kind::all_reduce, element, combine, 0, count};
  const auto bytes = count * size_of(element);
  if (bytes <= (size() == 2 && options_.arena_bytes == 0 ? small_bytes_of_two : small_bytes))
    return reduce_flat(data, mine, true, timeout);
  // Whether the arenas hold all of it only the others' announcements can tell.
  announce(mine, timeout, place_in_arena(data, bytes));
  meet();
  compare(mine);
  bool in_arenas = true;
  for (int each = 0; each < size(); ++each)
    in_arenas = in_arenas &&
                control(each).announced[sequence_ % 2].place.load(std::memory_order_relaxed) != 0;
  if (in_arenas)
    reduce_in_arenas(mine);
  else
    reduce_in_sections(data, mine);
}

/// A step without data: returns when every rank has come to it.
void ShmRing::meet() {
  await_free(step_);
  auto& own = control(rank());
  own.staged.publish(step_ + 1);
  for_peers([&](int peer) { await(peer, &Control::staged, step_ + 1); });
  own.taken.publish(step_ + 1);
  finish(1);
}

/// Each rank reduces a section of all arenas and writes it into all of them.
void ShmRing::reduce_in_arenas(const Collective& mine) {
  const auto width = size_of(mine.element), bytes = mine.count * width;
  const auto ranks = static_cast<std::size_t>(size());
  const auto function = reduce_function(mine.element, mine.combine);
  const auto [begin, length] = piece_of(bytes, round_up((bytes + ranks - 1) / ranks, cache_line),
                                        static_cast<std::uint32_t>(rank()));
  const auto place = [&, offset = begin](int of) {
    const auto& announced = control(of).announced[sequence_ % 2];
    return arena_of(of) + announced.place.load(std::memory_order_relaxed) - 1 + offset;
  };
  std::vector<const std::byte*> inputs;
  for (int each = 0; each < size(); ++each) inputs.push_back(place(each));
  std::vector<std::byte*> copies;
  for_peers([&](int peer) { copies.push_back(place(peer)); });
  reduce_and_copy(function, width, place(rank()), inputs, copies, length);
  meet();
}

void ShmRing::reduce(std::byte* data, std::size_t count, Element element, Combine combine, int root,
                     Timeout timeout) {
  reduce_flat(data,
              {Collective::Kind::reduce, element, combine, static_cast<std::uint32_t>(root), count},
              rank() == root, timeout);
}

/// Every rank shows all of its data; those that keep the result reduce all of it.
void ShmRing::reduce_flat(std::byte* data, const Collective& mine, bool keep, Timeout timeout) {
  const auto width = size_of(mine.element), bytes = mine.count * width;
  const auto piece = options_.slot_bytes / 2;
  const auto function = reduce_function(mine.element, mine.combine);
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(size()));
  const int source = keep ? everybody : rank();
  run_steps(
      mine, steps_for(bytes, piece), source, timeout,
      [&](std::uint32_t step, std::byte* to) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        copy_bytes(to, data + begin, length);
      },
      [&](std::uint32_t step) {
        if (!keep) return;
        const auto [begin, length] = piece_of(bytes, piece, step);
        for (int each = 0; each < size(); ++each)
          inputs[static_cast<std::size_t>(each)] =
              each == rank() ? data + begin : slot(each, step_ + step);
        function(data + begin, inputs, length / width, static_cast<std::size_t>(size()));
      });
}

/// Each block is cut into a section a rank: that rank reduces it, and the others fetch it. Three
/// blocks are under way at once (one is staged, one reduced, one fetched), hence three slots: with
/// two, each rank waits for the others to free a slot that they free only after it has gone on.
void ShmRing::reduce_in_sections(std::byte* data, const Collective& mine) {
  const auto width = size_of(mine.element), bytes = mine.count * width;
  const auto ranks = static_cast<std::size_t>(size()), share = share_bytes();
  const auto function = reduce_function(mine.element, mine.combine);
  const auto steps = steps_for(bytes, share * ranks);
  const auto section = [&](std::uint32_t step, int of) {
    const auto block = piece_of(bytes, share * ranks, step);
    // Whole cache lines, and so whole elements, since the widest has 16 bytes.
    const auto inside =
        piece_of(block.bytes, round_up((block.bytes + ranks - 1) / ranks, cache_line),
                 static_cast<std::uint32_t>(of));
    return Piece{block.begin + inside.begin, inside.bytes};
  };
  const auto place = [&](int of) { return static_cast<std::size_t>(of) * share; };

  auto& own = control(rank());
  const auto stage = [&](std::uint32_t step) {
    await_free(step_ + step);
    auto* to = slot(rank(), step_ + step);
    for_peers([&](int peer) {
      const auto [begin, length] = section(step, peer);
      copy_bytes(to + place(peer), data + begin, length);
    });
    own.staged.publish(step_ + step + 1);
  };
  std::vector<const std::byte*> inputs(ranks);
  const auto reduce = [&](std::uint32_t step) {
    const auto [begin, length] = section(step, rank());
    auto* result = slot(rank(), step_ + step) + place(rank());
    for (int each = 0; each < size(); ++each)
      inputs[static_cast<std::size_t>(each)] =
          each == rank() ? data + begin : slot(each, step_ + step) + place(rank());
    reduce_and_copy(function, width, data + begin, inputs, {result}, length);
    own.reduced.publish(step_ + step + 1);
  };
  const auto fetch = [&](std::uint32_t step) {
    for_peers([&](int peer) {
      await(peer, &Control::reduced, step_ + step + 1);
      const auto [begin, length] = section(step, peer);
      copy_bytes(data + begin, slot(peer, step_ + step) + place(peer), length);
    });
    own.taken.publish(step_ + step + 1);
  };

  stage(0);
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) stage(step + 1);
    for_peers([&](int peer) { await(peer, &Control::staged, step_ + step + 1); });
    reduce(step);
    if (step > 0) fetch(step - 1);
  }
  fetch(steps - 1);
  finish(steps);
}

void ShmRing::all_gather(Pointers outputs, const std::byte* input, std::size_t count,
                         Element element, Timeout timeout) {
  const auto bytes = count * size_of(element), piece = options_.slot_bytes / 2;
  run_steps(
      {Collective::Kind::all_gather, element, {}, 0, count}, steps_for(bytes, piece), everybody,
      timeout,
      [&](std::uint32_t step, std::byte* to) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        copy_bytes(to, input + begin, length);
        copy_bytes(outputs[static_cast<std::size_t>(rank())] + begin, input + begin, length);
      },
      [&](std::uint32_t step) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        for_peers([&](int peer) {
          copy_bytes(outputs[static_cast<std::size_t>(peer)] + begin, slot(peer, step_ + step),
                     length);
        });
      });
}

void ShmRing::gather(Pointers outputs, const std::byte* input, std::size_t count, Element element,
                     int root, Timeout timeout) {
  const auto bytes = count * size_of(element), piece = options_.slot_bytes / 2;
  run_steps(
      {Collective::Kind::gather, element, {}, static_cast<std::uint32_t>(root), count},
      steps_for(bytes, piece), rank() == root ? everybody : rank(), timeout,
      [&](std::uint32_t step, std::byte* to) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        if (rank() != root)
          copy_bytes(to, input + begin, length);
        else
          copy_bytes(outputs[static_cast<std::size_t>(rank())] + begin, input + begin, length);
      },
      [&](std::uint32_t step) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        if (rank() != root) return;
        for_peers([&](int peer) {
          copy_bytes(outputs[static_cast<std::size_t>(peer)] + begin, slot(peer, step_ + step),
                     length);
        });
      });
}

void ShmRing::scatter(std::byte* output, ConstPointers inputs, std::size_t count, Element element,
                      int root, Timeout timeout) {
  const auto bytes = count * size_of(element), piece = share_bytes();
  const auto place = [&](int of) { return static_cast<std::size_t>(of) * piece; };
  run_steps(
      {Collective::Kind::scatter, element, {}, static_cast<std::uint32_t>(root), count},
      steps_for(bytes, piece), root, timeout,
      [&](std::uint32_t step, std::byte* to) {
        if (rank() != root) return;
        const auto [begin, length] = piece_of(bytes, piece, step);
        for_peers([&](int peer) {
          copy_bytes(to + place(peer), inputs[static_cast<std::size_t>(peer)] + begin, length);
        });
        copy_bytes(output + begin, inputs[static_cast<std::size_t>(root)] + begin, length);
      },
      [&](std::uint32_t step) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        if (rank() != root)
          copy_bytes(output + begin, slot(root, step_ + step) + place(rank()), length);
      });
}

void ShmRing::reduce_scatter(std::byte* output, ConstPointers inputs, std::size_t count,
                             Element element, Combine combine, Timeout timeout) {
  const auto width = size_of(element), bytes = count * width, piece = share_bytes();
  const auto place = [&](int of) { return static_cast<std::size_t>(of) * piece; };
  const auto function = reduce_function(element, combine);
  std::vector<const std::byte*> pieces(static_cast<std::size_t>(size()));
  run_steps(
      {Collective::Kind::reduce_scatter, element, combine, 0, count}, steps_for(bytes, piece),
      everybody, timeout,
      [&](std::uint32_t step, std::byte* to) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        for_peers([&](int peer) {
          copy_bytes(to + place(peer), inputs[static_cast<std::size_t>(peer)] + begin, length);
        });
      },
      [&](std::uint32_t step) {
        const auto [begin, length] = piece_of(bytes, piece, step);
        for (int each = 0; each < size(); ++each)
          pieces[static_cast<std::size_t>(each)] =
              each == rank() ? inputs[static_cast<std::size_t>(each)] + begin
                             : slot(each, step_ + step) + place(rank());
        function(output + begin, pieces, length / width, static_cast<std::size_t>(size()));
      });
}

void ShmRing::all_to_all(Pointers outputs, Lengths output_bytes, ConstPointers inputs,
                         Lengths input_bytes, Timeout timeout) {
  const Collective mine{Collective::Kind::all_to_all};
  const auto piece = share_bytes();
  const auto place = [&](int of) { return static_cast<std::size_t>(of) * piece; };
  const auto self = static_cast<std::size_t>(rank());
  announce(mine, timeout);
  std::ranges::copy(output_bytes, std::ranges::copy(input_bytes, lengths_of(rank())).out);

  auto& own = control(rank());
  const auto stage = [&](std::uint32_t step) {
    await_free(step_ + step);
    for_peers([&](int peer) {
      const auto index = static_cast<std::size_t>(peer);
      const auto [begin, length] = piece_of(input_bytes[index], piece, step);
      if (length > 0)
        copy_bytes(slot(rank(), step_ + step) + place(peer), inputs[index] + begin, length);
    });
    own.staged.publish(step_ + step + 1);
  };
  const auto wait_for_all = [&](std::uint32_t step) {
    for_peers([&](int peer) { await(peer, &Control::staged, step_ + step + 1); });
  };

  stage(0);
  wait_for_all(0);
  compare(mine);
  std::size_t longest = 0;
  for (int from = 0; from < size(); ++from)
    for (int to = 0; to < size(); ++to) {
      const auto sent = lengths_of(from)[to], wanted = lengths_of(to)[size() + from];
      longest = std::max<std::size_t>(longest, sent);
      if (sent == wanted) continue;
      stop_and_fail(fmt::format(
          "accel: rank {} of {}: in all_to_all rank {} sends {} bytes to rank {}, which "
          "expects {}; the output split sizes of a rank are the input split sizes of the "
          "others",
          rank(), size(), from, sent, to, wanted));
    }
  copy_bytes(outputs[self], inputs[self], input_bytes[self]);
  const auto steps = steps_for(longest, piece);
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) stage(step + 1);
    if (step > 0) wait_for_all(step);
    for_peers([&](int peer) {
      const auto index = static_cast<std::size_t>(peer);
      const auto [begin, length] = piece_of(output_bytes[index], piece, step);
      if (length > 0)
        copy_bytes(outputs[index] + begin, slot(peer, step_ + step) + place(rank()), length);
    });
    own.taken.publish(step_ + step + 1);
  }
  finish(steps);
}

}  // namespace accel::detail
