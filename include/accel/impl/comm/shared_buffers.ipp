// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// LibTorch has one allocator of CPU tensors for the process. Ours stands before it from the first
// use on, and passes everything on but what a thread asks for inside a scope.
#include <accel/comm/shared_buffers.hpp>

#include <accel/comm/hierarchical_backend.hpp>
#include <accel/comm/shm_backend.hpp>

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

namespace accel {
namespace {

/// Whose memory this thread's tensors go to.
thread_local ShmBackend* chosen = nullptr;

class Redirect final : public c10::Allocator {
 public:
  explicit Redirect(c10::Allocator* usual) : usual_(usual) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    // Below this a tensor is reduced through the slots in any case.
    constexpr std::size_t least = 64 << 10;
    if (chosen && bytes > least)
      if (auto shared = chosen->allocate(bytes)) return shared;
    return usual_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    usual_->copy_data(to, from, bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return usual_->is_simple_data_ptr(data);
  }

 private:
  c10::Allocator* usual_;
};

void install() {
  static const bool installed = [] {
    // LibTorch keeps the pointer until the process ends.
    static auto* redirect = new Redirect(c10::GetCPUAllocator());
    constexpr std::uint8_t above_others = 100;
    c10::SetCPUAllocator(redirect, above_others);
    return true;
  }();
  (void)installed;
}

ShmBackend* backend_of(const Communicator& communicator) {
  const auto group = communicator.group();
  if (!group) return nullptr;
  const auto types = group->getDeviceTypes();
  if (std::ranges::find(types, c10::Device(c10::kCPU)) == types.end()) return nullptr;
  auto* backend = group->getBackend(c10::DeviceType::CPU).get();
  if (auto* several = dynamic_cast<HierarchicalBackend*>(backend)) return several->inside();
  return dynamic_cast<ShmBackend*>(backend);
}

}  // namespace

SharedBuffers::SharedBuffers(const Communicator& communicator) : previous_(chosen) {
  chosen = backend_of(communicator);
  if (chosen) install();
}
SharedBuffers::~SharedBuffers() { chosen = static_cast<ShmBackend*>(previous_); }

}  // namespace accel
