// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks say to each other once they are connected.
#include <accel/comm/communicator.hpp>

#include <accel/comm/connection.hpp>
#include <accel/detail/error.hpp>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

namespace accel {

using detail::bytes_of;
using detail::cause_of;
using detail::fail;
using detail::text_of;

namespace {

/// The key under which a rank that stops says why.
constexpr const char* last_word = "last_word";

/// What a rank is about to do. Before every collective the ranks exchange this, in messages of one
/// size whatever the collective: ranks that call different things learn it, where the transport
/// would mix their bytes or end the process.
struct Call {
  enum Operation : int64_t { barrier, reduce, gather, broadcast, objects, sum, pad };

  Operation operation;
  int64_t argument = 0;  ///< the reduction, the root, or the dim
  int64_t part = 1;      ///< which tensor of a nested value, and of how many; 0: it has none

  bool operator==(const Call&) const = default;

  [[nodiscard]] const char* name() const {
    constexpr std::array names{"barrier",           "reduce",          "gather", "broadcast",
                               "gather of objects", "sum of a number", "pad"};
    return operation >= 0 && operation < std::ssize(names) ? names[operation] : "another library";
  }
  [[nodiscard]] std::string text() const {
    std::string text = name();
    if (operation == reduce) {
      constexpr std::array reductions{"sum", "mean", "max", "min"};
      text += fmt::format(" ({})", reductions.at(static_cast<size_t>(argument)));
    }
    if (operation == broadcast) text += fmt::format(" from rank {}", argument);
    if (operation == pad) text += fmt::format(" (dim {})", argument);
    if (part == 0)
      text += " of no tensor";
    else if (part != 1)
      text += fmt::format(", tensor {} of {}", (part >> 32) + 1, part & 0xffffffff);
    return text;
  }
};

/// Whether a tensor has values that can be sent as they lie, and if not, why. From `layout` on: that it
/// is of the layout of this number.
enum Form : int64_t { dense, undefined, meta, nested, layout };

int64_t form_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return undefined;
  if (tensor.is_nested()) return nested;
  if (tensor.layout() != c10::kStrided) return layout + static_cast<int64_t>(tensor.layout());
  return tensor.is_meta() ? meta : dense;
}

/// A call, and what it is of: dtype, rank of the tensor and its sizes; or a number.
constexpr int64_t max_dims = 14;
struct Header {
  Call call;
  int64_t form = dense;
  int64_t type = 0;
  int64_t dims = 0;
  std::array<int64_t, max_dims> sizes{};

  [[nodiscard]] static Header of(const Call& call, const at::Tensor& tensor) {
    Header header{call, form_of(tensor)};
    if (header.form != dense) return header;
    header.type = static_cast<int64_t>(tensor.scalar_type());
    header.dims = tensor.dim();
    for (int64_t dim = 0; dim < std::min(tensor.dim(), max_dims); ++dim)
      header.sizes[static_cast<size_t>(dim)] = tensor.size(dim);
    return header;
  }
  [[nodiscard]] static Header of(const Call& call, int64_t number) {
    return {call, dense, 0, 0, {number}};
  }

  /// The length in a dim, which counts from the end where it is negative; 0 where there is none.
  [[nodiscard]] int64_t length(int64_t dim) const {
    if (dim < 0) dim += dims;
    return dim >= 0 && dim < dims ? sizes.at(static_cast<size_t>(dim)) : 0;
  }
  [[nodiscard]] std::string why_not_sent() const {
    switch (form) {
      case undefined: return "an undefined one";
      case meta: return "one on meta";
      case nested: return "a nested one";
      default:
        return fmt::format("one of layout {}", c10::str(static_cast<c10::Layout>(form - layout)));
    }
  }

  [[nodiscard]] std::string shape() const {
    return fmt::format("{} [{}]", c10::toString(static_cast<c10::ScalarType>(type)),
                       fmt::join(sizes.begin(), sizes.begin() + std::min(dims, max_dims), ", "));
  }
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) % sizeof(int64_t) == 0);

/// For an operation that is waited for at once: some backends then run it in this thread.
template <class Options>
Options awaited() {
  Options options;
  options.asyncOp = false;
  return options;
}

/// Runs one collective and turns what c10d throws into a sentence.
template <class Start>
void run(const char* what, const Communicator& communicator, Start&& start) {
  try {
    // A backend that has waited itself may give no work.
    if (const auto work = start()) work->wait();
  } catch (const std::exception& error) {
    communicator.fail_operation(what, error);
  }
}

/// "rank 0: A; ranks 1, 3: B", for what ranks say that differs.
std::string by_rank(const std::vector<std::string>& said) {
  std::vector<std::pair<std::string, std::vector<size_t>>> groups;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    auto group = std::ranges::find(groups, said[rank], &decltype(groups)::value_type::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {said[rank], {}});
    group->second.push_back(rank);
  }
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : groups)
    parts.push_back(
        fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), text));
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// Every rank's header. Throws Error(collective) on every rank unless all are of one call.
std::vector<Header> exchange(const Communicator& communicator, const Header& mine) {
  if (communicator.size() == 1) return {mine};
  constexpr int64_t length = sizeof(Header) / sizeof(int64_t);
  auto in = at::empty({length}, at::kLong);
  std::memcpy(in.mutable_data_ptr(), &mine, sizeof mine);
  auto out = at::empty({communicator.size() * length}, at::kLong);
  run(mine.call.name(), communicator, [&] {
    return communicator.group()->_allgather_base(out, in, awaited<c10d::AllgatherOptions>());
  });
  std::vector<Header> headers(static_cast<size_t>(communicator.size()));
  std::memcpy(headers.data(), out.const_data_ptr(), headers.size() * sizeof(Header));
  if (std::ranges::all_of(headers, [&](const Header& header) { return header.call == mine.call; }))
    return headers;
  std::vector<std::string> calls;
  for (const auto& header : headers) calls.push_back(header.call.text());
  fail(ErrorCategory::collective,
       "accel: rank {}: ranks are not at the same call ({}). Every rank must make the same "
       "collective calls in the same order; ACCEL_DEBUG=true names their lines",
       communicator.rank(), by_rank(calls));
}

/// What every rank has. Throws the same sentence on every rank if a tensor cannot be sent, or if they
/// differ in dtype or shape; a gather's rows may differ in number, and the tensors to pad in shape.
std::vector<Header> compare(const Communicator& communicator, const Call& call,
                            const at::Tensor& tensor) {
  const auto headers = exchange(communicator, Header::of(call, tensor));
  if (call.part == 0) return headers;
  for (size_t rank = 0; rank < headers.size(); ++rank) {
    if (headers[rank].form != dense)
      fail(ErrorCategory::usage,
           "accel: rank {}: {} takes dense tensors with values, and rank {} gave {}",
           communicator.rank(), call.name(), rank, headers[rank].why_not_sent());
    if (headers[rank].dims > max_dims)
      fail(ErrorCategory::usage,
           "accel: {} takes tensors of up to {} dims, and rank {} gave one of {}", call.name(),
           max_dims, rank, headers[rank].dims);
  }
  const bool free_rows = call.operation == Call::gather;
  const bool free_shape = call.operation == Call::pad;
  const auto& first = headers.front();
  bool same_types = true, same_shapes = true;
  for (const auto& header : headers) {
    same_types = same_types && header.type == first.type;
    same_shapes = same_shapes && header.dims == first.dims &&
                  std::equal(header.sizes.begin() + free_rows, header.sizes.end(),
                             first.sizes.begin() + free_rows);
  }
  if (same_types && (same_shapes || free_shape)) return headers;
  std::vector<std::string> shapes;
  for (const auto& header : headers) shapes.push_back(header.shape());
  fail(ErrorCategory::collective, "accel: {} needs the same dtype{} on every rank{}, and got {}{}",
       call.name(), free_shape ? "" : " and shape", free_rows ? " but for dim 0" : "",
       by_rank(shapes), same_types ? "; use pad_across_processes before it" : "");
}

/// Every rank's bytes, in rank order.
std::vector<std::string> exchange_bytes(const Communicator& communicator,
                                        const std::string& bytes) {
  const Call call{Call::objects};
  const auto headers = exchange(communicator, Header::of(call, std::ssize(bytes)));
  int64_t longest = 0;
  for (const auto& header : headers) longest = std::max(longest, header.sizes[0]);
  std::vector<std::string> all(headers.size());
  if (longest == 0) return all;
  auto padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), bytes.data(), bytes.size());
  auto gathered = at::empty({std::ssize(headers) * longest}, at::kByte);
  run(call.name(), communicator, [&] {
    return communicator.group()->_allgather_base(gathered, padded,
                                                 awaited<c10d::AllgatherOptions>());
  });
  const auto* place = static_cast<const char*>(gathered.const_data_ptr());
  for (size_t rank = 0; rank < all.size(); ++rank, place += longest)
    all[rank].assign(place, static_cast<size_t>(headers[rank].sizes[0]));
  return all;
}

c10d::ReduceOp operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::max: return c10d::ReduceOp::MAX;
    case Reduction::min: return c10d::ReduceOp::MIN;
    default: return c10d::ReduceOp::SUM;
  }
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> Communicator::group() const {
  return connection_ ? connection_->group : c10::intrusive_ptr<c10d::ProcessGroup>();
}

void Communicator::compare_calls(std::string_view call, const CallSite& where) const {
  if (!connection_ || !connection_->debug) return;
  const auto mine = fmt::format("{} at {}:{}", call, where.file_name(), where.line());
  const auto all = exchange_bytes(*this, mine);
  if (std::ranges::count(all, mine) == size()) return;
  fail(ErrorCategory::collective,
       "accel: rank {}: ranks are not at the same call ({}). Every rank must make the same "
       "collective calls, in the same order and from the same lines",
       rank(), by_rank(all));
}

bool Communicator::debugging() const noexcept { return connection_ && connection_->debug; }

void Communicator::barrier(const CallSite& where) const {
  if (!connection_) return;
  compare_calls("barrier", where);
  (void)exchange(*this, {{Call::barrier}});  // returns when every rank has sent its own
}

at::Tensor Communicator::all_reduce(const at::Tensor& tensor, Reduction reduction,
                                    const CallSite& where, int64_t part) const {
  compare_calls("reduce", where);
  // Before anything that only some ranks might find: what compare() throws, all of them throw.
  (void)compare(*this, {Call::reduce, static_cast<int64_t>(reduction), part}, tensor);
  if (part == 0) return tensor;
  const auto type = tensor.scalar_type();
  if (reduction == Reduction::mean && !at::isFloatingType(type) && !at::isComplexType(type))
    fail(ErrorCategory::usage,
         "accel: rank {}: the mean over ranks of {} values is not an integer; reduce with sum, or "
         "convert to a floating type first",
         ranks_.rank, c10::toString(type));
  const bool adds = reduction == Reduction::sum || reduction == Reduction::mean;
  const auto type_of_result = adds && at::isReducedFloatingType(type) ? at::kFloat : type;
  if (!connection_ && !at::isComplexType(type))
    return tensor.detach().to(type_of_result, /*non_blocking=*/false, /*copy=*/true);
  if (at::isComplexType(type)) {
    if (reduction == Reduction::max || reduction == Reduction::min)
      fail(ErrorCategory::usage,
           "accel: rank {}: complex numbers have no order; reduce them with sum or mean",
           ranks_.rank);
    return at::view_as_complex(
        all_reduce(at::view_as_real(tensor.detach().resolve_conj()), reduction, where, part));
  }
  if (type == at::kUInt64) {
    // Sums have the bits of signed sums; with the highest bit flipped the order is the signed one.
    const int64_t flip = adds ? 0 : std::numeric_limits<int64_t>::min();
    const auto bits = tensor.detach().contiguous().view(at::kLong).bitwise_xor(flip);
    return all_reduce(bits, reduction, where, part).bitwise_xor_(flip).view(at::kUInt64);
  }
  // Types that the backend does not add, or adds with a rounding each time, are combined in a wider
  // one.
  const auto wide = type == at::kBool                 ? at::kByte
                    : type == at::kShort              ? at::kInt
                    : type == at::kUInt16             ? at::kInt
                    : type == at::kUInt32             ? at::kLong
                    : at::isReducedFloatingType(type) ? at::kFloat
                                                      : type;
  auto values =
      tensor.detach().to(wide, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  if (type == at::kBool && reduction == Reduction::sum) reduction = Reduction::max;
  // Gloo's order of a NaN and a number is that of the ranks: NaNs travel apart, so that all have them.
  const bool orders = at::isFloatingType(type) && !adds;
  if (orders) {
    const double last =
        std::numeric_limits<double>::infinity() * (reduction == Reduction::max ? -1 : 1);
    const auto is_nan = values.isnan();
    const auto marks = is_nan.to(wide).mul_(reduction == Reduction::max ? 1 : -1);
    values = at::stack({values.masked_fill_(is_nan, last), marks});
  }
  if (values.numel() > 0) {
    std::vector<at::Tensor> tensors{values};
    auto options = awaited<c10d::AllreduceOptions>();
    options.reduceOp = operation(reduction);
    run("reduce", *this, [&] { return connection_->group->allreduce(tensors, options); });
  }
  if (orders)
    values = values[0].masked_fill(values[1].ne(0), std::numeric_limits<double>::quiet_NaN());
  if (reduction == Reduction::mean) values.div_(ranks_.size);
  return values.to(type_of_result);
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor, const CallSite& where,
                                    int64_t part) const {
  const bool is_row = form_of(tensor) == dense && tensor.dim() == 0;
  auto rows = is_row ? tensor.reshape({1}) : tensor;
  compare_calls("gather", where);
  const auto headers = compare(*this, {Call::gather, 0, part}, rows);
  if (part == 0) return tensor;
  rows = rows.detach().resolve_conj().resolve_neg().contiguous();
  if (!connection_) return rows.clone();
  auto& group = *connection_->group;
  std::vector<int64_t> lengths;
  for (const auto& header : headers) lengths.push_back(header.length(0));
  const auto longest = *std::ranges::max_element(lengths);
  const bool even = std::ranges::count(lengths, longest) == std::ssize(lengths);
  auto sizes = rows.sizes().vec();
  sizes[0] = longest - rows.size(0);
  if (sizes[0] > 0) rows = at::cat({rows, at::zeros(sizes, rows.options())});
  sizes[0] = longest * ranks_.size;
  auto all = at::empty(sizes, rows.options());
  if (all.numel() > 0) {
    // Bytes are gathered: every dtype travels, whatever the backend can add.
    auto in = rows.view({-1}).view(at::kByte);
    auto out = all.view({-1}).view(at::kByte);
    run("gather", *this,
        [&] { return group._allgather_base(out, in, awaited<c10d::AllgatherOptions>()); });
  }
  if (even) return all;
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks_.size; ++rank)
    parts.push_back(all.narrow(0, rank * longest, lengths[static_cast<size_t>(rank)]));
  return at::cat(parts);
}

at::Tensor Communicator::broadcast(const at::Tensor& tensor, int root, const CallSite& where,
                                   int64_t part) const {
  compare_calls("broadcast", where);
  (void)compare(*this, {Call::broadcast, root, part}, tensor);
  if (root < 0 || root >= ranks_.size)
    fail(ErrorCategory::usage, "accel: rank {}: broadcast from rank {}, but the ranks are 0 to {}",
         ranks_.rank, root, ranks_.size - 1);
  if (part == 0) return tensor;
  auto copy = tensor.detach().resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
  if (!connection_ || copy.numel() == 0) return copy;
  auto& group = *connection_->group;
  std::vector<at::Tensor> bytes{copy.view({-1}).view(at::kByte)};
  auto options = awaited<c10d::BroadcastOptions>();
  options.rootRank = root;
  run("broadcast", *this, [&] { return group.broadcast(bytes, options); });
  return copy;
}

std::vector<int64_t> Communicator::all_lengths(const at::Tensor& tensor, int64_t dim,
                                               const CallSite& where, int64_t part) const {
  compare_calls("pad", where);
  std::vector<int64_t> lengths;
  for (const auto& header : compare(*this, {Call::pad, dim, part}, tensor))
    lengths.push_back(header.length(dim));
  return lengths;
}

void Communicator::broadcast_coalesced_(const std::vector<at::Tensor>& tensors, int root) const {
  if (!connection_ || tensors.empty()) return;
  constexpr size_t message_bytes = 250 << 20;  // what PyTorch's DDP uses for parameters and buffers
  try {
    c10d::broadcast_coalesced(connection_->group, tensors, message_bytes, root);
  } catch (const std::exception& error) {
    fail_operation("broadcast of parameters or buffers", error);
  }
}

std::vector<std::string> Communicator::all_gather_bytes(const std::string& bytes,
                                                        const CallSite& where) const {
  if (!connection_) return {bytes};
  compare_calls("gather of objects", where);
  return exchange_bytes(*this, bytes);
}

int64_t Communicator::all_sum(int64_t mine, const CallSite& where) const {
  if (!connection_) return mine;
  compare_calls("sum of a number", where);
  int64_t sum = 0;
  for (const auto& header : exchange(*this, Header::of({Call::sum}, mine))) sum += header.sizes[0];
  return sum;
}

void Communicator::leave_word(const std::string& reason) const noexcept {
  if (!connection_ || !connection_->store) return;
  try {
    connection_->store->set(last_word, bytes_of(reason));
  } catch (const std::exception&) {
    // The others learn less; what this rank is about to say is not lost.
  }
}

void Communicator::fail_operation(const char* what, const std::exception& cause) const {
  std::string word;
  try {
    if (connection_ && connection_->store && connection_->store->check({last_word}))
      word = text_of(connection_->store->get(last_word));
  } catch (const std::exception&) {
    // Rank 0 is gone, and its store with it.
  }
  if (!word.empty())
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: {} failed, since another rank stopped: {}", ranks_.rank,
         ranks_.size, what, word);
  fail(ErrorCategory::collective,
       "accel: rank {} of {}: {} failed. A rank has ended, calls another operation, or took longer "
       "than collective_timeout. Cause: {}",
       ranks_.rank, ranks_.size, what, cause_of(cause));
}

bool Communicator::all_agree(bool mine, const CallSite& where) const {
  return all_sum(mine ? 1 : 0, where) == size();
}

}  // namespace accel
