// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/offload_file.hpp>

#include <accel/detail/error.hpp>

#include <ATen/ATen.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace accel::detail {

namespace {

/// A mapped file, which nobody else can open.
class MappedFile {
 public:
  MappedFile(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  ~MappedFile() { munmap(data_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

 private:
  void* data_;
  std::size_t bytes_;
};

/// Its address tells memory of files from other memory.
void let_go_of_file(void* file) { delete static_cast<std::shared_ptr<MappedFile>*>(file); }

constexpr std::size_t alignment = 64;
std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct Descriptor {
  int number;
  ~Descriptor() { close(number); }
};

}  // namespace

OffloadFile::OffloadFile(std::filesystem::path folder, int rank)
    : folder_(std::move(folder)), rank_(rank) {
  if (folder_.empty())
    fail(
        ErrorCategory::config,
        "accel: rank {}: offload<...> on the CPU puts what waits into files; set offload.folder to "
        "a folder on a disk",
        rank_);
  const Descriptor file{open_unnamed()};
  struct statfs system{};
  if (fstatfs(file.number, &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
    fail(ErrorCategory::config,
         "accel: rank {}: offload.folder is {}, which lies in memory itself; name a folder on a "
         "disk",
         rank_, folder_.string());
}

int OffloadFile::open_unnamed() const {
  int number = open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
  if (number < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    auto name = (folder_ / "accel-XXXXXX").string();
    number = mkostemp(name.data(), O_CLOEXEC);
    if (number >= 0) unlink(name.c_str());
  }
  if (number < 0)
    fail(ErrorCategory::config,
         "accel: rank {}: no file can be made in offload.folder {}: {}; name a folder on a disk "
         "that "
         "this process may write to",
         rank_, folder_.string(), std::strerror(errno));
  return number;
}

c10::DataPtr OffloadFile::allocate(std::size_t bytes) {
  const auto length = std::max<std::size_t>(bytes, 1);
  const Descriptor file{open_unnamed()};
  // Space that is missing shows here; later it would be a signal.
  int error = 0;
  do error = posix_fallocate(file.number, 0, static_cast<off_t>(length));
  while (error == EINTR);
  void* data = error != 0
                   ? MAP_FAILED
                   : mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  if (data == MAP_FAILED)
    fail(ErrorCategory::config,
         "accel: rank {}: {} bytes do not fit into offload.folder {}: {}; make space, or name a "
         "folder on another disk",
         rank_, bytes, folder_.string(), std::strerror(error != 0 ? error : errno));
  auto* owner = new std::shared_ptr<MappedFile>(std::make_shared<MappedFile>(data, length));
  return {data, owner, &let_go_of_file, c10::Device(c10::kCPU)};
}

std::vector<at::Tensor> OffloadFile::move(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const auto& tensor : tensors) bytes += aligned(tensor.nbytes());
  const auto memory = allocate(bytes);
  const auto& file = *static_cast<std::shared_ptr<MappedFile>*>(memory.get_context());
  auto* place = static_cast<char*>(memory.get());
  std::vector<at::Tensor> moved;
  for (const auto& tensor : tensors) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.nbytes(),
                         c10::DataPtr(place, new std::shared_ptr<MappedFile>(file), &let_go_of_file,
                                      c10::Device(c10::kCPU)),
                         /*allocator=*/nullptr, /*resizable=*/false);
    auto copy = at::empty({0}, tensor.options());
    copy.set_(storage, 0, tensor.sizes(),
              at::empty_like(tensor, tensor.options().device(at::kMeta)).strides());
    copy.copy_(tensor);
    moved.push_back(std::move(copy));
    place += aligned(tensor.nbytes());
  }
  return moved;
}

bool is_in_file(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  return tensor.storage().data_ptr().get_deleter() == &let_go_of_file;
}

void drop_pages(const at::Tensor& tensor) {
  if (is_in_file(tensor)) drop_pages(tensor.const_data_ptr(), tensor.nbytes());
}

void drop_pages(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  // Neighbours on the first and the last page lose nothing either.
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto before = reinterpret_cast<std::uintptr_t>(data) % page;
  auto* first = const_cast<char*>(static_cast<const char*>(data)) - before;
  madvise(first, before + bytes, MADV_DONTNEED);
}

}  // namespace accel::detail
