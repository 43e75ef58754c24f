// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What the ranks tell each other of a stream: bodies of stream_feed.hpp.
#include <accel/data/stream_feed.hpp>

#include <accel/comm/executable_batch_size.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>

namespace accel::detail {

namespace {

/// The category that a failure has on the other ranks. Where it is memory, they are only cut off:
/// find_executable_batch_size goes on with all of them.
ErrorCategory category_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) return ErrorCategory::collective;
    const auto* own = dynamic_cast<const Error*>(&error);
    return own ? own->category() : ErrorCategory::data;
  } catch (...) {
    return ErrorCategory::data;
  }
}

/// The failure of another rank, as one of this.
std::exception_ptr failure_of_rank(int here, int there, ErrorCategory category,
                                   const std::string& text) {
  try {
    fail(category, "accel: rank {}: the stream failed on rank {}: {}", here, there, text);
  } catch (...) {
    return std::current_exception();
  }
}

/// A round as a rank reports it: the number of its samples, or '!', a category and a reason.
std::string report_of(const TurnFacts& facts) {
  if (!facts.failure) return fmt::to_string(facts.found.front());
  return fmt::format("!{}{}", static_cast<int>(category_of(facts.failure)),
                     text_of_failure(facts.failure));
}

}  // namespace

std::string text_of_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void compare_turns(TurnFacts& facts, const Communicator& communicator, const RoundPlan& plan,
                   std::int64_t round) {
  const int here = communicator.rank();
  const bool sharded = plan.options().already_sharded;
  const auto own = facts.failure;
  const bool is_full = !own && facts.found.front() == plan.read_size();
  if (communicator.all_agree(is_full)) {
    if (sharded)
      facts.found.assign(static_cast<std::size_t>(communicator.size()), plan.read_size());
    return;
  }
  const auto reports = communicator.all_gather_bytes(report_of(facts));
  std::vector<std::int64_t> found;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const auto& report = reports[static_cast<std::size_t>(rank)];
    if (report.starts_with('!')) {
      if (!own)
        facts.failure = failure_of_rank(here, rank, static_cast<ErrorCategory>(report[1] - '0'),
                                        report.substr(2));
      return;
    }
    std::int64_t number = 0;
    std::from_chars(report.data(), report.data() + report.size(), number);
    found.push_back(number);
  }
  try {
    if (!sharded) {
      for (int rank = 1; rank < communicator.size(); ++rank)
        if (const auto other = found[static_cast<std::size_t>(rank)]; other != found.front())
          fail(ErrorCategory::data,
               "accel: rank {}: the stream has another length on rank {}: {} samples, and {} on "
               "rank 0; give every rank the same stream, or, where each has its own part, set "
               "already_sharded",
               here, rank, round * plan.read_size() + other,
               round * plan.read_size() + found.front());
      return;
    }
    if (plan.fills() && round == 0 && plan.exists(found))
      if (const auto empty = std::ranges::find(found, 0); empty != found.end())
        fail(ErrorCategory::data,
             "accel: rank {}: the stream of rank {} is empty, and its batches cannot be filled up; "
             "give each rank a sample at least, or set drop_last",
             here, empty - found.begin());
    facts.found = std::move(found);
  } catch (...) {
    facts.failure = std::current_exception();
  }
}

at::Tensor wrap(const TurnFacts& facts, const WireWriter& writer) {
  nlohmann::json head{{"found", facts.found}};
  if (facts.failure) {
    head["category"] = static_cast<int>(category_of(facts.failure));
    head["failure"] = text_of_failure(facts.failure);
  }
  return writer.bytes(head);
}

void deliver(Parcel& parcel, const Communicator& communicator) {
  const bool reads = communicator.rank() == 0;
  // What could not be packed, and what has no batch, is told in a parcel of facts.
  if (reads && (parcel.facts.failure || !parcel.bytes.defined()))
    parcel.bytes = wrap(parcel.facts, {});
  const auto mine = at::full({}, reads ? parcel.bytes.numel() : 0, at::kLong);
  const auto length = communicator.broadcast(mine, 0).item<std::int64_t>();
  if (!reads) parcel.bytes = at::empty({length}, at::kByte);
  const auto bytes = communicator.broadcast(parcel.bytes, 0);
  if (reads) return;
  parcel.bytes = bytes;
  const WireReader reader(bytes);
  const auto& head = reader.head();
  parcel.facts.found = head.at("found").get<std::vector<std::int64_t>>();
  if (head.contains("failure"))
    parcel.facts.failure = failure_of_rank(
        communicator.rank(), 0, static_cast<ErrorCategory>(head.at("category").get<int>()),
        head.at("failure").get<std::string>());
}

}  // namespace accel::detail
