// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What loaders do that does not depend on the type of the dataset: bodies of loader_options.hpp,
// batch_reader.hpp and loader_epoch.hpp.
#include <accel/data/loader.hpp>
#include <accel/comm/agreement.hpp>
#include <accel/data/batch_reader.hpp>
#include <accel/data/loader_epoch.hpp>
#include <accel/data/loader_options.hpp>
#include <accel/data/sampler.hpp>
#include <accel/data/stream_reader.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/fnv.hpp>

#include <ATen/Parallel.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string>

namespace accel::detail {

void check_loader_options(const DataLoaderOptions& options) {
  if (options.batch_size < 1)
    fail(ErrorCategory::config, "batch_size is {}, and must be at least 1", options.batch_size);
  if (options.num_workers < 0)
    fail(ErrorCategory::config, "num_workers is {}, and must be 0 or more", options.num_workers);
  if (options.prefetch_factor < 1)
    fail(ErrorCategory::config,
         "prefetch_factor is {}, and must be at least 1; use num_workers = 0 to read nothing ahead",
         options.prefetch_factor);
  constexpr int most_batches = 1 << 20;
  if (options.num_workers > most_batches / options.prefetch_factor)
    fail(ErrorCategory::config,
         "num_workers {} with prefetch_factor {} would keep more than {} batches; use smaller "
         "numbers",
         options.num_workers, options.prefetch_factor, most_batches);
}

void check_dataset_options(const DataLoaderOptions& options) {
  if (options.dispatch_batches || options.already_sharded)
    fail(ErrorCategory::config,
         "{} is for streams, and the dataset has a size() and numbered samples; pass "
         "accel::as_stream(dataset), or leave the option out",
         options.dispatch_batches ? "dispatch_batches" : "already_sharded");
}

void check_copies(const DataLoaderOptions& options, const LoaderPlacement& placement) {
  if (options.non_blocking && !placement.device)
    fail(ErrorCategory::config,
         "non_blocking says how batches are copied to the device, and device_placement is off, so "
         "that none is; leave one of the two out");
}

IndexPlan make_plan(const DataLoaderOptions& options, const LoaderPlacement& placement,
                    std::int64_t samples) {
  return IndexPlan({.samples = samples,
                    .batch_size = options.batch_size,
                    .num_processes = placement.num_processes,
                    .process_index = placement.process_index,
                    .drop_last = options.drop_last,
                    .even_batches = options.even_batches,
                    .split_batches = options.split_batches});
}

std::uint64_t choose_seed(const DataLoaderOptions& options, const LoaderPlacement& placement) {
  if (options.data_seed) return *options.data_seed;
  return placement.seed ? *placement.seed : default_data_seed();
}

namespace {

/// Throws the exception that is being handled, nested in one whose sentence begins with `what`.
[[noreturn]] void rethrow_behind(const std::string& what) {
  try {
    throw;
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.category(), what + error.what()));
  } catch (const c10::Error& error) {
    std::throw_with_nested(Error(ErrorCategory::data, what + error.what_without_backtrace()));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(ErrorCategory::data, what + error.what()));
  } catch (...) {
    std::throw_with_nested(
        Error(ErrorCategory::data, what + "an exception that is no std::exception"));
  }
}

}  // namespace

void rethrow_naming_samples(c10::ArrayRef<std::size_t> indices) {
  constexpr std::size_t shown = 16;
  const auto some = indices.slice(0, std::min(indices.size(), shown));
  rethrow_behind(
      fmt::format("reading the samples [{}{}] failed: ", fmt::join(some, ", "),
                  indices.size() > shown ? fmt::format(", ... {} in all", indices.size()) : ""));
}

std::exception_ptr failure_of(const std::string& what) noexcept {
  try {
    rethrow_behind(what);
  } catch (...) {
    return std::current_exception();
  }
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device, bool non_blocking) {
  if (!tensor.defined()) return tensor;
  return tensor.to(tensor.options().device(device), non_blocking);
}

at::Tensor to_pinned_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() ? tensor.pin_memory() : tensor;
}

void compare_loops(const Communicator& communicator, const std::function<void()>& make_order) {
  communicator.compare_calls("a loop over a loader", CallSite::current());
  communicator.together(make_order, ErrorCategory::data, "another rank's sampler failed");
}

void compare_orders(const Communicator& communicator, const SampleOrder& order,
                    std::int64_t epoch) {
  Fnv1a digest;
  for (std::int64_t i = 0; i < order.size(); ++i) digest.add(static_cast<std::uint64_t>(order[i]));
  require_agreement(
      communicator,
      fmt::format("epoch {}\nsamples {}\ndigest of the order {:016x}\n", epoch, order.size(),
                  digest.value()),
      "iterate a loader in different orders",
      "Each computes the order of all: give samplers the same weights and seeds on every rank");
}

IntraopThreads::IntraopThreads() : count_(at::get_num_threads()) {}

IntraopThreads::~IntraopThreads() { at::set_num_threads(count_); }

void IntraopThreads::use_one_here() noexcept {
  // LibTorch gives a thread the process's number at its first question: that must lie behind us, or
  // it would undo the call.
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
}

}  // namespace accel::detail
