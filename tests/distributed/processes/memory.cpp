// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The bytes that policy/memory.hpp and docs/sharding.md state for each stage, against what LibTorch's
// allocator was asked for: at rest, and at the peak of a step. One rank a process, over Gloo, so that
// all memory is that allocator's.
#include "support/launched_ranks.hpp"

#include <accel/accel.hpp>
#include <accel/policy/memory.hpp>

#include <c10/core/CPUAllocator.h>
#include <catch2/catch_all.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include <malloc.h>

namespace {

/// LibTorch's allocator for the CPU, with a count.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::kCPU};
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) throw std::bad_alloc();
    const auto now = bytes_.fetch_add(size_of(memory)) + size_of(memory);
    for (auto most = peak_.load(); most < now && !peak_.compare_exchange_weak(most, now);) {
    }
    return {memory, memory, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static double bytes() { return static_cast<double>(bytes_); }
  static double peak() { return static_cast<double>(peak_); }
  static void forget_peak() { peak_ = bytes_.load(); }

 private:
  static int64_t size_of(void* memory) {
    return static_cast<int64_t>(::malloc_usable_size(memory));
  }
  static void release(void* memory) {
    if (!memory) return;
    bytes_ -= size_of(memory);
    std::free(memory);
  }
  static inline std::atomic<int64_t> bytes_{0}, peak_{0};
};

constexpr int64_t width = 128, blocks = 48;
constexpr int64_t block = width * (width + 1);  // parameters of one
constexpr double unit = 4.0 * block;            // bytes of it

/// Equal blocks, a unit each.
struct Tower : torch::nn::Module {
  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
  explicit Tower(int64_t height = blocks) {
    for (int64_t i = 0; i < height; ++i) layers->push_back(torch::nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
};

struct Bytes {
  double rest = 0, peak = 0;
};

/// Gloo's threads let go of the tensors of their last work a moment after it is done: what came before
/// is gone when the count is back to `base`, but for what is made once.
void wait_for(double base) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (CountingAllocator::bytes() > base + unit / 4) {
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("a training that is over still holds memory");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// The count once it has stayed the same for a while, for the same reason.
double settled() {
  double bytes = CountingAllocator::bytes();
  for (int quiet = 0; quiet < 50; ++quiet) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (CountingAllocator::bytes() != bytes) quiet = 0;
    bytes = CountingAllocator::bytes();
  }
  return bytes;
}

/// Bytes of the last of some steps: when it is over, and the most in it.
template <class Backend, class Placement, class Precision>
Bytes measure(double base, int64_t batch) {
  wait_for(base);
  const auto x = at::ones({batch, width});  // the program's, as far as this is concerned
  const double before = CountingAllocator::bytes();
  accel::AcceleratorOptions options;
  options.offload.folder = std::filesystem::current_path().string();
  accel::Accelerator<Backend, Precision, accel::accumulate<1>, Placement> accelerator(
      accel::test::processes(), options);
  auto net = std::make_shared<Tower>();
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  Bytes bytes;
  for (int step = 0; step < 5; ++step) {
    CountingAllocator::forget_peak();
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(x).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    });
    bytes = {CountingAllocator::bytes() - before, CountingAllocator::peak() - before};
  }
  return bytes;
}

/// Bytes of a run on meta.
accel::ActivationMemory activations_of(int64_t batch) {
  auto net = accel::deferred_init([] { return std::make_shared<Tower>(); });
  const auto x = at::empty({batch, width}, at::TensorOptions().device(at::kMeta));
  return accel::activation_memory(*net, [&] { return net->forward(x).square().mean(); });
}

template <class Backend, class Placement = accel::on<accel::cpu>, class Precision = accel::fp32>
void check(double base, int64_t batch = 1) {
  const auto stated = accel::rank_memory<Backend, Precision, Placement>(
      {.parameters = blocks * block, .largest_unit = block},
      {.num_processes = 2, .activations = activations_of(batch).peak});
  const auto found = measure<Backend, Placement, Precision>(base, batch);
  INFO(Backend::name << ' ' << Precision::name << ' ' << Placement::name << ": at rest "
                     << found.rest << ", stated " << stated.at_rest() << "; peak " << found.peak
                     << ", stated " << stated.peak());
  // Of what there would be in memory without offload.
  CHECK(std::abs(found.rest - stated.at_rest()) < 0.03 * (stated.at_rest() + stated.offloaded));
  CHECK(std::abs(found.peak - stated.peak()) < 0.03 * (stated.peak() + stated.offloaded));
}

}  // namespace

TEST_CASE("the bytes of every stage are those that docs/sharding.md states") {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/255);
  REQUIRE(accel::test::processes().num_processes() == 2);
  const double base = CountingAllocator::bytes();
  check<accel::ddp>(base);
  check<accel::sharded<accel::zero1>>(base);
  check<accel::sharded<accel::zero2>>(base);
  check<accel::shard_grad_op>(base);
  check<accel::full_shard>(base);
  using accel::offload, accel::optimizer_state, accel::parameters;
  check<accel::sharded<accel::zero1>, accel::on<accel::cpu, offload<optimizer_state>>>(base);
  check<accel::full_shard, accel::on<accel::cpu, offload<optimizer_state, parameters>>>(base);
}

TEST_CASE("the bytes of 16-bit parameters are those that docs/sharding.md states") {
  const double base = CountingAllocator::bytes();
  using accel::bf16_true;
  using Here = accel::on<accel::cpu>;
  using Masters = accel::with_masters<bf16_true>;
  check<accel::ddp, Here, bf16_true>(base);
  check<accel::ddp, Here, Masters>(base);
  check<accel::sharded<accel::zero1>, Here, Masters>(base);
  check<accel::sharded<accel::zero2>, Here, Masters>(base);
  check<accel::full_shard, Here, bf16_true>(base);
  check<accel::full_shard, Here, Masters>(base);
}

TEST_CASE("the bytes of activations are those of a dry run on meta") {
  constexpr int64_t batch = 512;
  // Each layer's output is the next one's input, and is kept.
  CHECK(activations_of(batch).kept > blocks * batch * width * 4);
  const double base = CountingAllocator::bytes();
  check<accel::ddp>(base, batch);
  check<accel::sharded<accel::zero2>>(base, batch);
  check<accel::full_shard>(base, batch);
}

TEST_CASE("of a deferred module a rank holds its part and a parameter at a time") {
  constexpr double whole = blocks * unit;
  const double before = CountingAllocator::bytes();
  CountingAllocator::forget_peak();
  auto net = accel::deferred_init([] { return std::make_shared<Tower>(); });
  CHECK(CountingAllocator::peak() - before < unit);
  accel::Accelerator<accel::full_shard, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
      accelerator(accel::test::processes());
  auto model = accelerator.prepare(net);
  CHECK(CountingAllocator::bytes() - before < 0.55 * whole);
  CHECK(CountingAllocator::peak() - before < 0.55 * whole + 4 * unit);
  CHECK(model(at::ones({1, width})).isfinite().all().item<bool>());
}

TEST_CASE("500 steps leave the bytes as they were") {
  accel::Accelerator<accel::full_shard, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
      accelerator(accel::test::processes());
  auto net = std::make_shared<Tower>(6);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  double after_few = 0;
  for (int step = 0; step < 500; ++step) {
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(at::ones({1, width})).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    });
    if (step == 9) after_few = settled();
  }
  // Small tensors come and go with work that ends on other threads.
  CHECK(std::abs(settled() - after_few) < 4096);
}
