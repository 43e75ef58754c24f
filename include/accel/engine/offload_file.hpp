// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory for tensors that wait until they are needed: parts of files on a disk, mapped into the
// process, so that operations use them like any other memory and the kernel writes them out when it
// wants the pages. offload<...> puts shards of parameters (sharded_parallel.hpp), optimizer state
// (optim/offloaded_state.hpp) and what autograd saved (offloaded_activations.hpp) there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace accel {

/// Run-time options of offload<...>.
struct OffloadOptions {
  /// A folder on a disk of this host, for on<cpu, offload<...>>. What waits lies in files there that
  /// have no name and go with the process, however it ends.
  std::string folder{};
};

namespace detail {

/// Where the files of one rank are made.
class OffloadFile {
 public:
  /// Throws Error(config) where there is no such folder, where it cannot be written to, or where it
  /// lies in memory itself.
  OffloadFile(std::filesystem::path folder, int rank);

  /// Memory of zeros, which its owner frees; with it goes the space on the disk. Throws Error(config)
  /// where the disk has too little.
  [[nodiscard]] c10::DataPtr allocate(std::size_t bytes);
  /// The same for several tensors, and copies of them there.
  [[nodiscard]] std::vector<at::Tensor> move(const std::vector<at::Tensor>& tensors);

 private:
  [[nodiscard]] int open_unnamed() const;

  std::filesystem::path folder_;
  int rank_;
};

/// Whether a tensor lies in a file of this kind.
[[nodiscard]] bool is_in_file(const at::Tensor& tensor);
/// Takes the pages below a tensor of a file, or below memory of one, out of this process; the next
/// access brings them back. What they hold stays. Nothing happens to other tensors.
void drop_pages(const at::Tensor& tensor);
/// The same for memory that `OffloadFile::allocate` returned, or a part of it.
void drop_pages(const void* data, std::size_t bytes);

}  // namespace detail
}  // namespace accel
