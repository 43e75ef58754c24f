// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors of every dtype and layout whose reductions have one right value, and a list of what was
// wrong that several ranks may write to.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace accel::test {

inline const std::vector<at::ScalarType> types{
    at::kBool,          at::kByte,          at::kChar,       at::kShort,       at::kInt,
    at::kLong,          at::kHalf,          at::kBFloat16,   at::kFloat,       at::kDouble,
    at::kUInt16,        at::kUInt32,        at::kUInt64,     at::kComplexHalf, at::kComplexFloat,
    at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

/// Small whole numbers of a dtype, other ones for each rank, seed and place.
inline at::Tensor values(at::ScalarType type, int64_t count, int rank, int64_t seed = 0) {
  const auto numbers = (at::arange(count, at::kLong) * 7 + 3 * rank + 5 * seed) % 11;
  if (type == at::kBool) return numbers.remainder(2).to(at::kBool);
  if (at::isComplexType(type))
    return at::complex(numbers.to(at::kDouble), (numbers + 1).remainder(5).to(at::kDouble))
        .to(type);
  return numbers.to(at::kFloat).to(type);
}

/// The same values, laid out otherwise.
enum class Layout { plain, strided, transposed, offset };
inline at::Tensor lay_out(const at::Tensor& plain, Layout layout) {
  const auto n = plain.numel();
  switch (layout) {
    case Layout::plain: return plain.clone();
    case Layout::strided: {
      auto wide = at::zeros({n, 3}, plain.options());
      auto view = wide.select(1, 1);
      view.copy_(plain);
      return view;
    }
    case Layout::transposed: {
      if (n % 2 != 0 || n == 0) return plain.clone();
      auto view = at::empty({n / 2, 2}, plain.options()).t();
      view.copy_(plain.view({2, n / 2}));
      return view;
    }
    case Layout::offset: {
      auto long_one = at::zeros({n + 3}, plain.options());
      auto view = long_one.narrow(0, 3, n);
      view.copy_(plain);
      return view;
    }
  }
  return {};
}

inline bool same(const at::Tensor& one, const at::Tensor& other) {
  const auto a = one.contiguous(), b = other.contiguous();
  if (a.scalar_type() != b.scalar_type() || a.numel() != b.numel()) return false;
  return a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// The wrong ones of what several ranks found.
class Faults {
 public:
  void expect(bool right, const std::string& what) {
    if (right) return;
    const std::scoped_lock lock(mutex_);
    all_.push_back(what);
  }
  [[nodiscard]] std::vector<std::string> all() const { return all_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

}  // namespace accel::test
