// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of launch/event_set.hpp.
#include <accel/launch/event_set.hpp>

#include <accel/detail/error.hpp>

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace accel::detail {

namespace {

[[noreturn]] void refuse(int error) {
  fail(ErrorCategory::launch,
       "the ranks cannot be watched: {}; raise the limit on open files (ulimit -n)",
       std::strerror(error));
}

}  // namespace

EventSet::EventSet() : set_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!set_) refuse(errno);
}

void EventSet::add(const FileDescriptor& descriptor, std::uint32_t name) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = name;
  if (::epoll_ctl(set_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) != 0) refuse(errno);
  ++size_;
}

void EventSet::remove(FileDescriptor& descriptor) {
  if (!descriptor) return;
  // Closing alone is not enough while a child that has not got to its exec holds a copy.
  if (::epoll_ctl(set_.get(), EPOLL_CTL_DEL, descriptor.get(), nullptr) == 0) --size_;
  descriptor.close();
}

std::vector<std::uint32_t> EventSet::wait(int milliseconds) {
  // The kernel keeps a list of ready descriptors in the order in which they became so; room for all
  // of it, so that none is left for a second look.
  std::vector<epoll_event> ready(std::max<std::size_t>(size_, 1));
  const int count =
      ::epoll_wait(set_.get(), ready.data(), static_cast<int>(ready.size()), milliseconds);
  std::vector<std::uint32_t> names;
  for (int i = 0; i < count; ++i) names.push_back(ready[static_cast<std::size_t>(i)].data.u32);
  return names;
}

}  // namespace accel::detail
