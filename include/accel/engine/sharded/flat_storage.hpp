// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory of the sharded engine that tensors of the user's see. Such a tensor carries one dispatch
// key more than others, so that sharded_dispatch.hpp is asked before an operation touches it; its
// storage says whose it is. The memory of a flat tensor comes and goes while tensors on it stay: in
// between, whatever reads it without an operation is told so by an exception, not by garbage.
#pragma once

#include <accel/engine/offload_file.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string>

namespace accel::detail {

struct Unit;

/// The key. It lies above autograd and autocast, and LibTorch keeps it for wrappers such as this.
inline constexpr auto sharded_key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// A scope in which this thread's operations are the engine's own: neither recorded by autograd nor
/// intercepted.
struct EngineScope {
  at::NoGradGuard no_grad{};
  c10::impl::ExcludeDispatchKeyGuard excluded{sharded_key};
};

/// Whether a storage throws where its memory is asked for. It can be told to, with a message, by
/// `release_data_and_set_meta_custom_data_ptr_error_msg_`, and not to stop again.
[[nodiscard]] bool& throws_on_access(c10::StorageImpl& storage);

/// What a storage of the engine holds.
enum class FlatKind : unsigned char {
  values,          ///< the parameters of a unit, whole
  gradients,       ///< their gradients, whole
  value_shard,     ///< this rank's part of the parameters
  gradient_shard,  ///< of the gradients
};

/// A flat tensor of a unit, and the memory below it, which keyed tensors share while they may. The
/// engine's own view of that memory and the user's are two storages, so that the user's can refuse
/// what is not whole, or not up to date.
class FlatStorage {
 public:
  /// Without memory so far.
  FlatStorage(Unit& unit, FlatKind kind, int64_t numel, c10::ScalarType type, c10::Device device);
  /// Tensors that are left lose their owner: from then on an access is an error that says so.
  ~FlatStorage();
  FlatStorage(const FlatStorage&) = delete;
  FlatStorage& operator=(const FlatStorage&) = delete;

  [[nodiscard]] Unit& unit() const noexcept { return tag_.unit; }
  [[nodiscard]] FlatKind kind() const noexcept { return tag_.kind; }

  /// The storage of the engine that a tensor lies in; null for any other tensor, and for one whose
  /// owner is gone.
  [[nodiscard]] static FlatStorage* of(const at::Tensor& tensor);

  /// Gives it memory of its own, uninitialised and hidden; `spare` if that is some of its size.
  void allocate(c10::DataPtr spare = {});
  /// Gives it zeros in a file.
  void allocate_in(OffloadFile& file);
  /// Where its memory is in a file, takes the pages out of this process until the next access.
  void drop_pages() const;
  /// Gives it memory of somebody else's, which `holder` keeps.
  void alias(const at::Tensor& holder);
  /// Takes the memory away, and returns it.
  c10::DataPtr release();
  [[nodiscard]] bool is_present() const noexcept { return present_; }

  /// Lets keyed tensors use the memory.
  void show();
  /// No longer. What reads the memory through one is told `reason`.
  void hide(const std::string& reason);
  [[nodiscard]] bool is_shown() const noexcept { return shown_; }

  /// The whole as a tensor of one dimension, without the key; its memory need not be there.
  [[nodiscard]] const at::Tensor& flat() const noexcept { return flat_; }
  /// A tensor with the key on a part of it, which is no view in the sense of autograd.
  [[nodiscard]] at::Tensor keyed(int64_t offset, at::IntArrayRef sizes,
                                 at::IntArrayRef strides) const;
  [[nodiscard]] at::Tensor keyed(int64_t offset, int64_t numel) const;

 private:
  /// Marks a storage as the engine's. It is the storage's allocator, which LibTorch asks for nothing
  /// but a change of size.
  struct Tag final : c10::Allocator {
    Tag(FlatStorage& flat, Unit& owner, FlatKind what) : storage(flat), unit(owner), kind(what) {}
    c10::DataPtr allocate(size_t bytes) override;
    [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
    void copy_data(void* to, const void* from, size_t bytes) const override;
    FlatStorage& storage;
    Unit& unit;
    FlatKind kind;
  };

  Tag tag_;
  c10::Storage users_;  ///< of keyed tensors
  at::Tensor flat_;
  bool present_ = false;
  bool shown_ = false;
};

}  // namespace accel::detail
