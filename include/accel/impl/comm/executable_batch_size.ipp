// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/executable_batch_size.hpp>

#include <accel/detail/error.hpp>

#include <c10/util/Exception.h>
#ifdef ACCEL_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

namespace accel {

using detail::Attempt;
using detail::fail;

bool is_out_of_memory(const std::exception& error) {
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
  } catch (const Error& error) {
    return error.category() == ErrorCategory::collective ? Attempt::cut_off : Attempt::failed;
  } catch (const std::exception& error) {
    return is_out_of_memory(error) ? Attempt::out_of_memory : Attempt::failed;
  } catch (...) {
    return Attempt::failed;
  }
}

bool detail::vote_to_retry(const Communicator& communicator, Attempt mine,
                           const std::exception_ptr& failure) {
  // Three counts in one number; a job has fewer ranks than a digit has values.
  constexpr std::int64_t digit = std::int64_t{1} << 20;
  constexpr std::array<std::int64_t, 4> weights = {0, 1, digit, digit * digit};
  const auto all = communicator.all_sum(weights.at(static_cast<std::size_t>(mine)));
  const bool memory = all % digit > 0, cut_off = all / digit % digit > 0;
  const bool failed = all / (digit * digit) > 0;
  if (memory && !failed) return true;
  if (failure) std::rethrow_exception(failure);
  if (failed || cut_off)
    fail(ErrorCategory::collective,
         "accel: rank {}: the attempt ended well here and failed on another rank; the rank that "
         "failed says why",
         communicator.rank());
  return false;
}

void detail::release_cached_memory() {
#ifdef ACCEL_WITH_CUDA
  if (auto* allocator = c10::cuda::CUDACachingAllocator::get();
      allocator && allocator->initialized())
    allocator->emptyCache();
#endif
}

void detail::fail_without_batch_size(int rank, std::int64_t starting_batch_size) {
  fail(ErrorCategory::usage,
       "accel: rank {}: no executable batch size found from {} down, reached zero; make the model "
       "or the samples smaller, or make what takes memory inside the function that is called",
       rank, starting_batch_size);
}

}  // namespace accel
