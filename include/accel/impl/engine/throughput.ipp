// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/throughput.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace accel {

ThroughputRates ThroughputRates::over_ranks(const Communicator& communicator,
                                            const CallSite& where) const {
  if (communicator.size() == 1) return *this;
  const auto counts = communicator.all_gather(
      at::tensor({steps, samples, tokens}, at::kLong).reshape({1, 3}), where);
  const auto times = communicator.all_gather(at::tensor({seconds}, at::kDouble), where);
  ThroughputRates all;
  all.steps = counts.select(1, 0).min().item<std::int64_t>();
  all.samples = counts.select(1, 1).sum().item<std::int64_t>();
  all.tokens = counts.select(1, 2).sum().item<std::int64_t>();
  all.seconds = times.max().item<double>();
  return all;
}

Throughput::Throughput(ThroughputOptions options) : options_(std::move(options)) {
  if (options_.warmup < 0 || options_.window < 1)
    detail::fail(ErrorCategory::config,
                 "accel: a Throughput has a warmup of {} steps and a window of {}; give a warmup "
                 "from 0 and a window from 1",
                 options_.warmup, options_.window);
  last_ = options_.clock();
}

void Throughput::step(std::int64_t samples, std::int64_t tokens) {
  const auto now = options_.clock();
  const std::chrono::duration<double> took = now - std::exchange(last_, now);
  if (++seen_ <= options_.warmup) return;
  window_.push_back({1, samples, tokens, took.count()});
  if (std::ssize(window_) > options_.window) window_.pop_front();
  overall_.steps += 1;
  overall_.samples += samples;
  overall_.tokens += tokens;
  overall_.seconds += took.count();
  // Summed anew: differences of times that came and went would not add up to what is left.
  recent_ = {};
  for (const auto& each : window_) {
    recent_.steps += each.steps;
    recent_.samples += each.samples;
    recent_.tokens += each.tokens;
    recent_.seconds += each.seconds;
  }
}

void Throughput::pause_ended() { last_ = options_.clock(); }

}  // namespace accel
