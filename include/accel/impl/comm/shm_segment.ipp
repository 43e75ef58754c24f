// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_segment.hpp>

#include <accel/detail/error.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

namespace accel::detail {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail_with_errno(const char* what) {
  const int problem = errno;
  fail(ErrorCategory::collective,
       "accel: shared memory between the ranks of this host: {} failed: {}; ACCEL_TRANSPORT=gloo "
       "does "
       "without it",
       what, std::strerror(problem));
}

/// An address in the abstract namespace, and its length.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

Descriptor open_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) fail_with_errno("socket");
  return socket;
}

/// Whether the process at the other end is this user's (or root's).
bool is_trusted(const Descriptor& socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

/// Waits for something to read. False after the deadline.
bool wait_readable(const Descriptor& socket, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd ready{socket.number(), POLLIN, 0};
    const int found = ::poll(&ready, 1, static_cast<int>(std::min<long>(left, 1000)));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) fail_with_errno("poll");
  }
}

/// A message of one byte that carries a descriptor.
class Parcel {
 public:
  Parcel() {
    message_.msg_iov = &content_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
  }
  [[nodiscard]] msghdr* message() { return &message_; }

  void put(const Descriptor& descriptor) {
    auto* header = CMSG_FIRSTHDR(&message_);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = descriptor.number();
    std::memcpy(CMSG_DATA(header), &number, sizeof number);
  }
  [[nodiscard]] Descriptor take() {
    const auto* header = CMSG_FIRSTHDR(&message_);
    if (!header || header->cmsg_type != SCM_RIGHTS) return Descriptor{};
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    return Descriptor{number};
  }

 private:
  char byte_ = 0;
  iovec content_{&byte_, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr message_{};
};

}  // namespace

std::string host_identity() {
  std::string identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity;
  for (const char* space : {"net", "pid", "user"}) {
    struct stat found{};
    const auto path = std::string("/proc/self/ns/") + space;
    identity += ::stat(path.c_str(), &found) == 0 ? fmt::format("/{}:{}", space, found.st_ino)
                                                  : fmt::format("/{}:?", space);
  }
  return identity;
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}
Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor make_shared_memory(std::size_t bytes) {
  Descriptor memory(::memfd_create("accel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.is_open()) fail_with_errno("memfd_create");
  if (::ftruncate(memory.number(), static_cast<off_t>(bytes)) != 0) fail_with_errno("ftruncate");
  // Nobody can take pages away under the others.
  if (::fcntl(memory.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail_with_errno("sealing");
  return memory;
}

SharedSegment::SharedSegment(const Descriptor& memory, std::size_t bytes) : size_(bytes) {
  struct stat found{};
  if (::fstat(memory.number(), &found) != 0) fail_with_errno("fstat");
  if (static_cast<std::size_t>(found.st_size) != bytes)
    fail(ErrorCategory::collective,
         "accel: the ranks of this host share {} bytes, and this one expects {}; is every rank the "
         "same program?",
         found.st_size, bytes);
  void* place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                       memory.number(), 0);
  if (place == MAP_FAILED) fail_with_errno("mmap");
  data_ = static_cast<std::byte*>(place);
}
SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
SharedSegment::~SharedSegment() {
  if (data_) ::munmap(data_, size_);
}

DescriptorServer::DescriptorServer() : socket_(open_socket()) {
  std::random_device random;
  name_ = fmt::format("accel/{:08x}{:08x}{:08x}", random(), random(), random());
  const auto [address, length] = address_of(name_);
  if (::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    fail_with_errno("bind");
  if (::listen(socket_.number(), SOMAXCONN) != 0) fail_with_errno("listen");
}

void DescriptorServer::serve(const Descriptor& descriptor, int count, Clock::time_point deadline) {
  for (int served = 0; served < count;) {
    if (!wait_readable(socket_, deadline))
      fail(ErrorCategory::collective,
           "accel: {} of {} ranks of this host fetched the shared memory in time; startup_timeout "
           "is how long to wait",
           served, count);
    const Descriptor client(::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.is_open() || !is_trusted(client)) continue;
    Parcel parcel;
    parcel.put(descriptor);
    // A client that went away is the roll call's business.
    if (::sendmsg(client.number(), parcel.message(), MSG_NOSIGNAL) == 1) ++served;
  }
}

Descriptor fetch_descriptor(const std::string& name, Clock::time_point deadline) {
  const auto socket = open_socket();
  const auto [address, length] = address_of(name);
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    fail_with_errno("connect");
  if (!is_trusted(socket))
    fail(ErrorCategory::collective,
         "accel: the shared memory of this host's ranks is offered by another user");
  Parcel parcel;
  if (!wait_readable(socket, deadline) ||
      ::recvmsg(socket.number(), parcel.message(), MSG_CMSG_CLOEXEC) != 1)
    fail(ErrorCategory::collective,
         "accel: the first rank of this host did not hand over the shared memory in time");
  auto memory = parcel.take();
  if (!memory.is_open()) fail_with_errno("receiving a descriptor");
  return memory;
}

}  // namespace accel::detail
