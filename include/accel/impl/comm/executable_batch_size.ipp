// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/executable_batch_size.hpp>

#include <accel/comm/agreement.hpp>
#include <accel/detail/error.hpp>

#include <c10/util/Exception.h>
#ifdef ACCEL_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

namespace accel {

using detail::Attempt;
using detail::fail;

bool is_out_of_memory(const std::exception& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    if (is_out_of_memory(cause)) return true;
  } catch (...) {
    // An exception that is no std::exception says nothing of memory.
  }
  if (dynamic_cast<const Error*>(&error)) return false;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
      dynamic_cast<const std::bad_alloc*>(&error))
    return true;
  // accelerate/utils/memory.py, should_reduce_batch_size; without the devices that there are no
  // policies for.
  constexpr std::array<std::string_view, 3> messages = {
      " out of memory.", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
      "DefaultCPUAllocator: can't allocate memory"};
  const std::string_view text = error.what();
  return std::ranges::any_of(messages,
                             [&](const auto& each) { return text.find(each) != text.npos; });
}

Attempt detail::attempt_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) return Attempt::out_of_memory;
    const auto* own = dynamic_cast<const Error*>(&error);
    const bool cut_off = own && own->category() == ErrorCategory::collective;
    return cut_off ? Attempt::cut_off : Attempt::failed;
  } catch (...) {
    return Attempt::failed;
  }
}

std::int64_t detail::vote_to_retry(const Communicator& communicator, Attempt mine,
                                   const std::exception_ptr& failure) {
  // Three counts in one number; a job has fewer ranks than a digit has values.
  constexpr std::int64_t digit = std::int64_t{1} << 20;
  constexpr std::array<std::int64_t, 4> weights = {0, 1, digit, digit * digit};
  const auto all = communicator.all_sum(weights.at(static_cast<std::size_t>(mine)));
  const auto without_memory = all % digit;
  const bool cut_off = all / digit % digit > 0, failed = all / (digit * digit) > 0;
  if (without_memory > 0 && !failed) return without_memory;
  if (failure) std::rethrow_exception(failure);
  if (failed || cut_off)
    fail(ErrorCategory::collective,
         "accel: rank {}: the attempt ended well here and failed on another rank; the rank that "
         "failed says why",
         communicator.rank());
  return 0;
}

void detail::check_batch_size_search(const Communicator& communicator,
                                     std::int64_t starting_batch_size,
                                     const BatchSizeSearch& search) {
  require_agreement(communicator,
                    fmt::format("starting_batch_size {}\nfactor {}\nsmallest {}\n",
                                starting_batch_size, search.factor, search.smallest),
                    "search for a batch size differently", "Give every rank the same numbers");
  if (!(search.factor > 0 && search.factor < 1) || search.smallest < 1 ||
      starting_batch_size < search.smallest)
    fail(ErrorCategory::config,
         "accel: find_executable_batch_size needs a factor between 0 and 1 and a smallest size "
         "from 1 "
         "to the starting one, and got {}, {} and {}",
         search.factor, search.smallest, starting_batch_size);
}

std::int64_t detail::next_batch_size(const Communicator& communicator, std::int64_t batch_size,
                                     const BatchSizeSearch& search, std::int64_t ranks) {
  if (batch_size == search.smallest)
    fail(ErrorCategory::usage,
         "accel: rank {}: no executable batch size found: {}, the smallest to try, does not fit "
         "either; make the model or the samples smaller, or make what takes memory inside the "
         "function that is called",
         communicator.rank(), batch_size);
  const auto next = std::max(
      static_cast<std::int64_t>(static_cast<double>(batch_size) * search.factor), search.smallest);
  if (communicator.rank() != 0) return next;
  const auto line =
      fmt::format("accel: batches of {} ran out of memory on {} of {} ranks; trying {}", batch_size,
                  ranks, communicator.size(), next);
  if (search.log)
    search.log(line);
  else
    fmt::print(stderr, "{}\n", line);
  return next;
}

void detail::release_cached_memory() {
#ifdef ACCEL_WITH_CUDA
  if (auto* allocator = c10::cuda::CUDACachingAllocator::get();
      allocator && allocator->initialized())
    allocator->emptyCache();
#endif
}

}  // namespace accel
