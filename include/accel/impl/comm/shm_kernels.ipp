// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_kernels.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <complex>
#include <concepts>
#include <type_traits>

// One body for each instruction set, chosen when the program is loaded: the build need not know the
// processor. The resolvers run before a sanitizer is ready for them.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ACCEL_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define ACCEL_CLONES
#endif

namespace accel::detail {
namespace {

struct F16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};

// The conversions have no branch, so that loops over them are vectorised.

inline float widen(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline Bf16 narrow_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40u : rounded)};
}

/// binary16 -> binary32 (IEEE 754-2019, 3.6). Exact: a subnormal is made by a subtraction of
/// normal numbers.
inline float widen(F16 value) {
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + ((127u - 15u) << 23);
  const std::uint32_t special = shifted | 0x7f800000u;
  const auto subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted + (113u << 23)) -
                                                      std::bit_cast<float>(113u << 23));
  const std::uint32_t finite = magnitude < 0x400u ? subnormal : normal;
  return std::bit_cast<float>((magnitude >= 0x7c00u ? special : finite) | sign);
}
/// binary32 -> binary16, to nearest even. A subnormal is rounded by the addition of 0.5.
inline F16 narrow_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
      std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t special =
      magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : 0x7c00u;
  const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const std::uint32_t result = magnitude >= 0x477ff000u ? special : finite;  // from 65520 on
  return {static_cast<std::uint16_t>(result | sign)};
}

template <class T>
struct Stored {
  using Wide = T;
  static Wide load(T value) { return value; }
  static T store(Wide value) { return value; }
};
template <std::integral T>
struct Stored<T> {
  using Wide = T;
  static Wide load(T value) { return value; }
  static T store(Wide value) { return value; }
};
template <>
struct Stored<F16> {
  using Wide = float;
  static Wide load(F16 value) { return widen(value); }
  static F16 store(Wide value) { return narrow_f16(value); }
};
template <>
struct Stored<Bf16> {
  using Wide = float;
  static Wide load(Bf16 value) { return widen(value); }
  static Bf16 store(Wide value) { return narrow_bf16(value); }
};

template <class Part>
struct Complex {
  Part real, imaginary;
};
template <class Part>
struct Stored<Complex<Part>> {
  using One = Stored<Part>;
  using Wide = Complex<typename One::Wide>;
  static Wide load(Complex<Part> value) {
    return {One::load(value.real), One::load(value.imaginary)};
  }
  static Complex<Part> store(Wide value) {
    return {One::store(value.real), One::store(value.imaginary)};
  }
};

// The same name for numbers and complex ones: what `combine` does to two values.

template <std::integral T>
T add(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
}
template <std::floating_point T>
T add(T a, T b) {
  return a + b;
}
template <std::integral T>
T multiply(T a, T b) {
  using U = std::uint64_t;  // narrower types would be promoted to a signed one
  return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
}
template <std::floating_point T>
T multiply(T a, T b) {
  return a * b;
}
template <class T>
Complex<T> multiply(Complex<T> a, Complex<T> b) {
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}

template <Combine combine, class T>
T apply(T a, T b) {
  if constexpr (combine == Combine::sum || combine == Combine::average) return add(a, b);
  if constexpr (combine == Combine::product) return multiply(a, b);
  // A comparison with NaN is false: b comes through where it is one, and a by its own test.
  if constexpr (combine == Combine::min) return ((a < b) | (a != a)) ? a : b;
  if constexpr (combine == Combine::max) return ((a > b) | (a != a)) ? a : b;
  if constexpr (combine == Combine::bit_and) return static_cast<T>(a & b);
  if constexpr (combine == Combine::bit_or) return static_cast<T>(a | b);
  if constexpr (combine == Combine::bit_xor) return static_cast<T>(a ^ b);
}

// `out` is one of the inputs or none; an element depends on those of its own place only.
#ifdef __clang__
#define ACCEL_ELEMENTWISE  // compares the addresses first
#else
#define ACCEL_ELEMENTWISE _Pragma("GCC ivdep")
#endif

template <class T, Combine combine>
ACCEL_CLONES void of_two(T* out, const T* a, const T* b, std::size_t count, std::size_t divisor) {
  using S = Stored<T>;
  const auto scale = static_cast<float>(divisor);
  ACCEL_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) {
    auto value = apply<combine>(S::load(a[i]), S::load(b[i]));
    if constexpr (combine == Combine::average) value /= static_cast<decltype(value)>(scale);
    out[i] = S::store(value);
  }
}

template <class T, Combine combine>
ACCEL_CLONES void into(typename Stored<T>::Wide* sum, const T* next, std::size_t count) {
  ACCEL_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) sum[i] = apply<combine>(sum[i], Stored<T>::load(next[i]));
}

template <class T>
ACCEL_CLONES void load(typename Stored<T>::Wide* sum, const T* first, std::size_t count) {
  ACCEL_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) sum[i] = Stored<T>::load(first[i]);
}

template <class T, Combine combine>
ACCEL_CLONES void store(T* out, const typename Stored<T>::Wide* sum, std::size_t count,
                        std::size_t divisor) {
  const auto scale = static_cast<float>(divisor);
  ACCEL_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) {
    auto value = sum[i];
    if constexpr (combine == Combine::average) value /= static_cast<decltype(value)>(scale);
    out[i] = Stored<T>::store(value);
  }
}

template <class T, Combine combine>
void reduce(std::byte* out_bytes, std::span<const std::byte* const> inputs, std::size_t count,
            std::size_t divisor) {
  auto* out = reinterpret_cast<T*>(out_bytes);
  const auto input = [&](std::size_t rank) { return reinterpret_cast<const T*>(inputs[rank]); };
  if (inputs.size() == 2) return of_two<T, combine>(out, input(0), input(1), count, divisor);
  // Blocks whose sums stay in the first cache.
  constexpr std::size_t block = 2048;
  std::array<typename Stored<T>::Wide, block> sums;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const auto length = std::min(block, count - begin);
    load<T>(sums.data(), input(0) + begin, length);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank)
      into<T, combine>(sums.data(), input(rank) + begin, length);
    store<T, combine>(out + begin, sums.data(), length, divisor);
  }
}

/// A complex number is two real ones where they do not mix.
template <class Part, Combine combine>
void reduce_parts(std::byte* out, std::span<const std::byte* const> inputs, std::size_t count,
                  std::size_t divisor) {
  reduce<Part, combine>(out, inputs, 2 * count, divisor);
}

template <class T>
Reduce of_integers(Combine combine) {
  switch (combine) {
    case Combine::sum: return reduce<T, Combine::sum>;
    case Combine::average: return nullptr;
    case Combine::product: return reduce<T, Combine::product>;
    case Combine::min: return reduce<T, Combine::min>;
    case Combine::max: return reduce<T, Combine::max>;
    case Combine::bit_and: return reduce<T, Combine::bit_and>;
    case Combine::bit_or: return reduce<T, Combine::bit_or>;
    case Combine::bit_xor: return reduce<T, Combine::bit_xor>;
  }
  return nullptr;
}

template <class T>
Reduce of_floats(Combine combine) {
  switch (combine) {
    case Combine::sum: return reduce<T, Combine::sum>;
    case Combine::average: return reduce<T, Combine::average>;
    case Combine::product: return reduce<T, Combine::product>;
    case Combine::min: return reduce<T, Combine::min>;
    case Combine::max: return reduce<T, Combine::max>;
    default: return nullptr;
  }
}

template <class Part>
Reduce of_complex(Combine combine) {
  switch (combine) {
    case Combine::sum: return reduce_parts<Part, Combine::sum>;
    case Combine::average: return reduce_parts<Part, Combine::average>;
    case Combine::product: return reduce<Complex<Part>, Combine::product>;
    default: return nullptr;
  }
}

/// Bytes of 0 and 1: a sum says whether any is true, a product whether all are.
Reduce of_booleans(Combine combine) {
  switch (combine) {
    case Combine::sum:
    case Combine::max:
    case Combine::bit_or: return reduce<std::uint8_t, Combine::bit_or>;
    case Combine::product:
    case Combine::min:
    case Combine::bit_and: return reduce<std::uint8_t, Combine::bit_and>;
    case Combine::bit_xor: return reduce<std::uint8_t, Combine::bit_xor>;
    case Combine::average: return nullptr;
  }
  return nullptr;
}

}  // namespace

Reduce reduce_function(Element element, Combine combine) {
  switch (element) {
    case Element::boolean: return of_booleans(combine);
    case Element::u8: return of_integers<std::uint8_t>(combine);
    case Element::i8: return of_integers<std::int8_t>(combine);
    case Element::u16: return of_integers<std::uint16_t>(combine);
    case Element::i16: return of_integers<std::int16_t>(combine);
    case Element::u32: return of_integers<std::uint32_t>(combine);
    case Element::i32: return of_integers<std::int32_t>(combine);
    case Element::u64: return of_integers<std::uint64_t>(combine);
    case Element::i64: return of_integers<std::int64_t>(combine);
    case Element::f16: return of_floats<F16>(combine);
    case Element::bf16: return of_floats<Bf16>(combine);
    case Element::f32: return of_floats<float>(combine);
    case Element::f64: return of_floats<double>(combine);
    case Element::c16: return of_complex<F16>(combine);
    case Element::c32: return of_complex<float>(combine);
    case Element::c64: return of_complex<double>(combine);
    case Element::bytes: return nullptr;
  }
  return nullptr;
}

std::size_t size_of(Element element) {
  constexpr std::array<std::size_t, 17> sizes{1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 4, 8, 16, 1};
  return sizes.at(static_cast<std::size_t>(element));
}

const char* name_of(Element element) {
  constexpr std::array names{"bool",       "uint8",   "int8",    "uint16",    "int16",
                             "uint32",     "int32",   "uint64",  "int64",     "float16",
                             "bfloat16",   "float32", "float64", "complex32", "complex64",
                             "complex128", "bytes"};
  return names.at(static_cast<std::size_t>(element));
}

const char* name_of(Combine combine) {
  constexpr std::array names{"sum", "average", "product", "min", "max", "and", "or", "xor"};
  return names.at(static_cast<std::size_t>(combine));
}

}  // namespace accel::detail
