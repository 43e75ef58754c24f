// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The only file that includes Gloo's and NCCL's headers.
#include <accel/comm/transports.hpp>

#include <accel/comm/hierarchical_backend.hpp>
#include <accel/comm/host_layout.hpp>
#include <accel/comm/shm_backend.hpp>
#include <accel/config/environment.hpp>
#include <accel/detail/error.hpp>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef ACCEL_WITH_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace accel::detail {
namespace {

c10::intrusive_ptr<c10d::Backend> open_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, bool is_one_host,
                                            const CommunicatorOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.startup_timeout);
  const auto interface = options.interface.empty()
                             ? process_environment("GLOO_SOCKET_IFNAME").value_or("")
                             : options.interface;
  if (!interface.empty()) {
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (is_one_host) {
    // A job on one host needs no network: a host name that resolves to an interface that is down
    // must not matter.
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo);
  backend->setTimeout(options.collective_timeout);
  return backend;
}

/// Sets what CPU tensors travel over, and returns its type.
c10d::ProcessGroup::BackendType set_cpu_backend(c10d::ProcessGroup& group,
                                                const c10::intrusive_ptr<c10d::Store>& store,
                                                const Ranks& ranks,
                                                const CommunicatorOptions& options,
                                                Transport transport) {
  using Type = c10d::ProcessGroup::BackendType;
  const bool is_one_host = ranks.local_size == ranks.size;  // as the launcher says
  if (transport != Transport::gloo) {
    const auto place = c10::make_intrusive<c10d::PrefixStore>("shared_memory", store);
    const auto survey = survey_hosts(*place, ranks.rank, ranks.size, options.startup_timeout);
    const auto obstacle = survey.obstacle();
    auto shm = c10::make_intrusive<ShmBackend::Options>(options.startup_timeout,
                                                        options.collective_timeout);
    if (obstacle.empty()) {
      group.setBackend(c10::DeviceType::CPU, Type::CUSTOM,
                       c10::make_intrusive<ShmBackend>(place, ranks.rank, ranks.size, shm));
      return Type::CUSTOM;
    }
    const bool share_nothing = survey.layout.hosts() == ranks.size;
    if (transport == Transport::automatic && survey.lack.empty() && !share_nothing) {
      const auto network = [&](const c10::intrusive_ptr<c10d::Store>& part, int rank, int size) {
        return open_gloo(part, rank, size, /*is_one_host=*/false, options);
      };
      group.setBackend(
          c10::DeviceType::CPU, Type::CUSTOM,
          c10::make_intrusive<HierarchicalBackend>(place, ranks.rank, survey.layout, network, shm));
      return Type::CUSTOM;
    }
    if (transport == Transport::shared_memory)
      fail(
          ErrorCategory::config,
          "accel: rank {} of {}: shared memory was asked for, and {}; transport or ACCEL_TRANSPORT "
          "may be gloo",
          ranks.rank, ranks.size, obstacle);
    if (ranks.rank == 0 && is_one_host)
      fmt::print(stderr,
                 "accel: rank 0 of {}: CPU tensors travel over Gloo and not through shared memory, "
                 "since {}\n",
                 ranks.size, obstacle);
  }
  group.setBackend(c10::DeviceType::CPU, Type::GLOO,
                   open_gloo(store, ranks.rank, ranks.size, is_one_host, options));
  return Type::GLOO;
}

}  // namespace

Transport transport_of(const CommunicatorOptions& options) {
  if (options.transport != Transport::automatic) return options.transport;
  const auto text = process_environment("ACCEL_TRANSPORT");
  if (!text || text->empty() || *text == "automatic") return Transport::automatic;
  if (*text == "shared_memory") return Transport::shared_memory;
  if (*text == "gloo") return Transport::gloo;
  fail(ErrorCategory::config,
       "accel: ACCEL_TRANSPORT is '{}', and may be automatic, shared_memory or gloo", *text);
}

void set_backends(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Store>& store,
                  c10::DeviceType device, const Ranks& ranks, const CommunicatorOptions& options,
                  Transport transport) {
  if (device == c10::DeviceType::CPU) {
    group.setDefaultBackend(set_cpu_backend(group, store, ranks, options, transport));
    return;
  }
#ifdef ACCEL_WITH_CUDA
  if (device == c10::DeviceType::CUDA) {
    auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = options.collective_timeout;
    group.setBackend(
        device, c10d::ProcessGroup::BackendType::NCCL,
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, ranks.rank, ranks.size, nccl));
    // Objects and shapes travel as CPU tensors.
    set_cpu_backend(group, c10::make_intrusive<c10d::PrefixStore>("cpu", store), ranks, options,
                    transport);
    group.setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    return;
  }
#endif
  fail(ErrorCategory::config,
       "accel: rank {}: this build has no process group for {} tensors; build with "
       "-DACCEL_CUDA=ON, or use on<cpu>",
       ranks.rank, c10::DeviceTypeName(device));
}

}  // namespace accel::detail
