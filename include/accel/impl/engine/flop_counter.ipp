// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/flop_counter.hpp>

#include <accel/detail/error.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accel {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;
using Sizes = std::vector<std::int64_t>;

/// at::RecordFunction::inputs() asserts, in a debug build of ours, a flag that a release build of
/// LibTorch never sets; the inputs themselves are there. So they are read past the assertion: an
/// explicit instantiation may name a private member.
template <auto Member>
struct ReadInputs {
  friend Inputs inputs_of(const at::RecordFunction& function) { return function.*Member; }
};
Inputs inputs_of(const at::RecordFunction& function);
template struct ReadInputs<&at::RecordFunction::inputs_>;

std::int64_t product(Sizes::const_iterator begin, Sizes::const_iterator end) {
  std::int64_t all = 1;
  for (; begin != end; ++begin) all *= *begin;
  return all;
}
std::int64_t product(const Sizes& shape, std::ptrdiff_t from) {
  return product(shape.begin() + from, shape.end());
}

Sizes shape_of(const c10::IValue& value) { return value.toTensor().sizes().vec(); }

Sizes list_of(const c10::IValue& value) {
  const auto list = value.toDimVector();
  return {list.begin(), list.end()};
}

// The formulas are those of torch/utils/flop_counter.py (PyTorch 2.11), by the same names.

std::int64_t mm_flop(const Sizes& a, const Sizes& b) { return 2 * a[0] * a[1] * b[1]; }
std::int64_t bmm_flop(const Sizes& a, const Sizes& b) { return 2 * a[0] * a[1] * a[2] * b[2]; }

std::int64_t conv_flop_count(const Sizes& x, const Sizes& w, const Sizes& out, bool transposed) {
  return 2 * product(transposed ? x : out, 2) * product(w, 0) * x[0];
}

/// Where its output is needed: as long as the sum of what the windows cover.
Sizes convolution_output(const Sizes& x, const Sizes& w, const Sizes& stride, const Sizes& padding,
                         const Sizes& dilation) {
  const auto at = [](const Sizes& values, std::size_t dim) {
    return values[std::min(dim, values.size() - 1)];  // one number stands for all dims
  };
  Sizes out{x[0], w[0]};
  for (std::size_t dim = 0; dim + 2 < x.size(); ++dim)
    out.push_back((x[dim + 2] + 2 * at(padding, dim) - at(dilation, dim) * (w[dim + 2] - 1) - 1) /
                      at(stride, dim) +
                  1);
  return out;
}

/// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
std::int64_t conv_flop(Inputs in) {
  const auto x = shape_of(in[0]), w = shape_of(in[1]);
  const bool transposed = in[6].toBool();
  const auto out = transposed
                       ? Sizes{}
                       : convolution_output(x, w, list_of(in[3]), list_of(in[4]), list_of(in[5]));
  return conv_flop_count(x, w, out, transposed);
}

/// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
/// transposed, output_padding, groups, output_mask)
std::int64_t conv_backward_flop(Inputs in) {
  const auto turned = [](Sizes shape) {
    std::swap(shape[0], shape[1]);
    return shape;
  };
  const auto gradient = shape_of(in[0]), x = shape_of(in[1]), w = shape_of(in[2]);
  const bool transposed = in[7].toBool();
  const auto mask = in[10].toBoolList();
  std::int64_t flops = 0;
  if (mask.get(0)) flops += conv_flop_count(gradient, w, x, !transposed);
  if (mask.get(1))
    flops += transposed ? conv_flop_count(turned(gradient), turned(x), turned(w), false)
                        : conv_flop_count(turned(x), turned(gradient), turned(w), false);
  return flops;
}

std::int64_t sdpa_flop(Inputs in, std::size_t first = 0) {
  const auto q = shape_of(in[first]), k = shape_of(in[first + 1]), v = shape_of(in[first + 2]);
  const auto heads = q[0] * q[1];
  return bmm_flop({heads, q[2], q[3]}, {heads, q[3], k[2]}) +
         bmm_flop({heads, q[2], k[2]}, {heads, k[2], v[3]});
}

std::int64_t sdpa_backward_flop(Inputs in) {
  const auto q = shape_of(in[1]), k = shape_of(in[2]), v = shape_of(in[3]);
  const auto heads = q[0] * q[1];
  return bmm_flop({heads, q[2], q[3]}, {heads, q[3], k[2]}) +  // the scores again
         bmm_flop({heads, q[2], v[3]}, {heads, v[3], k[2]}) +  // their gradient
         bmm_flop({heads, k[2], q[2]}, {heads, q[2], v[3]}) +  // that of the values,
         bmm_flop({heads, q[2], k[2]}, {heads, k[2], q[3]}) +  // of the queries,
         bmm_flop({heads, q[3], q[2]}, {heads, q[2], k[2]});   // of the keys
}

using Formula = std::int64_t (*)(Inputs);

const std::unordered_map<std::string_view, Formula>& formulas() {
  constexpr Formula mm = [](Inputs in) { return mm_flop(shape_of(in[0]), shape_of(in[1])); };
  constexpr Formula addmm = [](Inputs in) { return mm_flop(shape_of(in[1]), shape_of(in[2])); };
  constexpr Formula bmm = [](Inputs in) { return bmm_flop(shape_of(in[0]), shape_of(in[1])); };
  constexpr Formula baddbmm = [](Inputs in) { return bmm_flop(shape_of(in[1]), shape_of(in[2])); };
  constexpr Formula sdpa = [](Inputs in) { return sdpa_flop(in); };
  static const std::unordered_map<std::string_view, Formula> known = {
      {"aten::mm", mm},
      {"aten::_scaled_mm", mm},
      {"aten::addmm", addmm},
      {"aten::addmm_", addmm},
      {"aten::bmm", bmm},
      {"aten::baddbmm", baddbmm},
      {"aten::baddbmm_", baddbmm},
      {"aten::convolution", conv_flop},
      {"aten::_convolution", conv_flop},
      {"aten::convolution_overrideable", conv_flop},
      {"aten::convolution_backward", conv_backward_flop},
      {"aten::_scaled_dot_product_flash_attention", sdpa},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", sdpa},
      {"aten::_scaled_dot_product_efficient_attention", sdpa},
      {"aten::_scaled_dot_product_cudnn_attention", sdpa},
      {"aten::_scaled_dot_product_flash_attention_backward", sdpa_backward_flop},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", sdpa_backward_flop},
      {"aten::_scaled_dot_product_efficient_attention_backward", sdpa_backward_flop},
      {"aten::_scaled_dot_product_cudnn_attention_backward", sdpa_backward_flop},
  };
  return known;
}

// LibTorch's callbacks are plain functions, and it carries those of a thread along to the threads of
// a backward pass. So each counter that is counting has a function of its own, which knows its place
// in a table. (A thread's debug information travels too, but is a stack, and Kineto's profile, which
// may begin and end at other places than a counter, is on it.)
constexpr std::size_t max_counters = 64;

/// By place: operators that are counted and have not ended in this thread. What runs inside one is a
/// part of it.
thread_local std::array<int, max_counters> depth{};

}  // namespace

struct FlopCounter::Counts {
  std::mutex mutex;
  std::map<std::string, std::int64_t> flops;
  std::size_t place = 0;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

  struct Table {
    std::mutex mutex;
    std::array<std::shared_ptr<Counts>, max_counters> counting;
  };
  static Table& table() {
    static Table table;
    return table;
  }

  struct Counted : at::ObserverContext {};

  template <std::size_t Place>
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const auto formula = formulas().find(function.name());
    if (formula == formulas().end()) return nullptr;
    if (depth[Place] == 0) {
      std::shared_ptr<Counts> counts;
      {
        const std::lock_guard lock(table().mutex);
        counts = table().counting[Place];
      }
      if (!counts) return nullptr;
      const auto flops = formula->second(inputs_of(function));
      const std::lock_guard lock(counts->mutex);
      counts->flops[function.name()] += flops;
    }
    ++depth[Place];
    return std::make_unique<Counted>();
  }
  template <std::size_t Place>
  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (context) --depth[Place];
  }

  struct Callbacks {
    std::unique_ptr<at::ObserverContext> (*begin)(const at::RecordFunction&);
    void (*end)(const at::RecordFunction&, at::ObserverContext*);
  };
  template <std::size_t... Place>
  static Callbacks callbacks(std::size_t place, std::index_sequence<Place...>) {
    static constexpr std::array<Callbacks, max_counters> all = {
        Callbacks{&begin<Place>, &end<Place>}...};
    return all.at(place);
  }
};

FlopCounter::FlopCounter() : counts_(std::make_shared<Counts>()) {
  {
    auto& [mutex, counting] = Counts::table();
    const std::lock_guard lock(mutex);
    const auto free = std::ranges::find(counting, nullptr);
    if (free == counting.end())
      detail::fail(ErrorCategory::usage,
                   "accel: {} FlopCounters count at once, and this would be one more; let the "
                   "scopes of others end first",
                   max_counters);
    counts_->place = static_cast<std::size_t>(free - counting.begin());
    *free = counts_;
  }
  const auto callbacks =
      Counts::callbacks(counts_->place, std::make_index_sequence<max_counters>());
  counts_->callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback(callbacks.begin, callbacks.end)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  at::removeCallback(counts_->callback);
  auto& [mutex, counting] = Counts::table();
  const std::lock_guard lock(mutex);
  counting[counts_->place] = nullptr;
}

std::int64_t FlopCounter::total() const {
  const std::lock_guard lock(counts_->mutex);
  std::int64_t all = 0;
  for (const auto& [name, count] : counts_->flops) all += count;
  return all;
}

std::map<std::string, std::int64_t> FlopCounter::by_operator() const {
  const std::lock_guard lock(counts_->mutex);
  return counts_->flops;
}

void FlopCounter::reset() {
  const std::lock_guard lock(counts_->mutex);
  counts_->flops.clear();
}

}  // namespace accel
