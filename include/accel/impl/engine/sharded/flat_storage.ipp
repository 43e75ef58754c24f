// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/flat_storage.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ops/empty.h>

#include <cstring>

namespace accel::detail {

// An explicit instantiation may name a private member; it fails to compile where LibTorch renames it.
template <bool c10::StorageImpl::* Flag>
struct ThrowFlag {
  friend bool& flag_of(c10::StorageImpl& storage) { return storage.*Flag; }
};
bool& flag_of(c10::StorageImpl& storage);
template struct ThrowFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

bool& throws_on_access(c10::StorageImpl& storage) { return flag_of(storage); }

namespace {

/// Only its address is used: it tells our storages from others.
void deleter_of_flat_storages(void*) {}

at::Tensor tensor_on(const c10::Storage& storage, c10::DispatchKeySet keys, caffe2::TypeMeta type,
                     int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), keys, type);
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

}  // namespace

c10::DataPtr FlatStorage::Tag::allocate(size_t) {
  fail(
      ErrorCategory::usage,
      "accel: a sharded parameter or gradient cannot be resized; change the module before prepare");
}
c10::DeleterFnPtr FlatStorage::Tag::raw_deleter() const { return &deleter_of_flat_storages; }
void FlatStorage::Tag::copy_data(void* to, const void* from, size_t bytes) const {
  std::memcpy(to, from, bytes);
}

FlatStorage::FlatStorage(Unit& unit, FlatKind kind, int64_t numel, c10::ScalarType type,
                         c10::Device device)
    : tag_(*this, unit, kind) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(type)) * numel;
  const auto storage = [&](c10::Allocator* allocator) {
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device), allocator,
        /*resizable=*/false));
  };
  users_ = storage(&tag_);
  const auto keys = at::empty({0}, at::TensorOptions().dtype(type).device(device)).key_set();
  flat_ = tensor_on(storage(nullptr), keys, c10::scalarTypeToTypeMeta(type), 0, {numel}, {1});
}

FlatStorage::~FlatStorage() {
  hide("accel: a sharded parameter or gradient was used whose accelerator is gone; call "
       "accelerator.free_memory() on every rank before it goes, which makes the module whole");
  users_.unsafeGetStorageImpl()->set_allocator(nullptr);
}

FlatStorage* FlatStorage::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(sharded_key)) return nullptr;
  auto* allocator = tensor.storage().unsafeGetStorageImpl()->allocator();
  if (!allocator || allocator->raw_deleter() != &deleter_of_flat_storages) return nullptr;
  return &static_cast<Tag*>(allocator)->storage;
}

void FlatStorage::allocate(c10::DataPtr spare) {
  auto& storage = *flat_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(
      spare ? std::move(spare)
            : c10::GetAllocator(storage.device_type())->allocate(storage.nbytes()));
  present_ = true;
}

void FlatStorage::allocate_in(OffloadFile& file) {
  auto& storage = *flat_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(file.allocate(storage.nbytes()));
  present_ = true;
}

void FlatStorage::drop_pages() const { accel::detail::drop_pages(flat_); }

void FlatStorage::alias(const at::Tensor& holder) {
  auto* kept = new at::Tensor(holder);
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      {holder.mutable_data_ptr(), kept, [](void* held) { delete static_cast<at::Tensor*>(held); },
       holder.device()});
  present_ = true;
}

c10::DataPtr FlatStorage::release() {
  auto& storage = *flat_.storage().unsafeGetStorageImpl();
  auto memory = std::move(storage._mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, flat_.device()));
  present_ = false;
  return memory;
}

void FlatStorage::show() {
  auto& storage = *users_.unsafeGetStorageImpl();
  throws_on_access(storage) = false;
  storage.set_data_ptr_noswap(
      {flat_.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get(),
       flat_.device()});
  shown_ = true;
}

void FlatStorage::hide(const std::string& reason) {
  auto& storage = *users_.unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, flat_.device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
  shown_ = false;
}

at::Tensor FlatStorage::keyed(int64_t offset, at::IntArrayRef sizes,
                              at::IntArrayRef strides) const {
  return tensor_on(users_, flat_.key_set().add(sharded_key), flat_.dtype(), offset, sizes, strides);
}

at::Tensor FlatStorage::keyed(int64_t offset, int64_t numel) const {
  return keyed(offset, {numel}, {1});
}

}  // namespace accel::detail
