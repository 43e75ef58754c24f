// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes of one host share, and how they get hold of it. It has no name: one process
// makes it and hands a descriptor to the others, so that no other user can open it, a container's
// limit of /dev/shm does not matter, and nothing is left behind when all are killed. Nothing of
// LibTorch.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace accel::detail {

/// Says which processes can share memory with this one: equal texts, and only those. The boot of the
/// machine and the namespaces of network, processes and users; a host's name says nothing of this.
[[nodiscard]] std::string host_identity();

/// An open descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

/// Memory of zeros that a descriptor stands for, not yet mapped. Pages that nobody touches cost
/// nothing. Throws Error(collective).
[[nodiscard]] Descriptor make_shared_memory(std::size_t bytes);

/// A mapping of it.
class SharedSegment {
 public:
  /// Throws Error(collective) where the memory is of another size or cannot be mapped.
  SharedSegment(const Descriptor& memory, std::size_t bytes);
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

/// Gives a descriptor to processes of the same user that ask for it, over a Unix socket of the
/// abstract kind (no file).
class DescriptorServer {
 public:
  DescriptorServer();

  /// What others pass to `fetch_descriptor`.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Answers `count` processes. Throws Error(collective) after `deadline`.
  void serve(const Descriptor& descriptor, int count,
             std::chrono::steady_clock::time_point deadline);

 private:
  std::string name_;
  Descriptor socket_;
};

/// Throws Error(collective) after `deadline`, or where the server is of another user.
[[nodiscard]] Descriptor fetch_descriptor(const std::string& name,
                                          std::chrono::steady_clock::time_point deadline);

}  // namespace accel::detail
