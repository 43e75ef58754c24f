// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// PrecisionPolicy and the class template with_masters.

#include "archetype.hpp"

#include <accel/policy/backend.hpp>
#include <accel/policy/precision.hpp>

namespace accel::testing {
namespace {

// Shipped, and the facts that engines read.
static_assert(PrecisionPolicy<fp32>);
static_assert(PrecisionPolicy<bf16>);
static_assert(PrecisionPolicy<fp16>);
static_assert(PrecisionPolicy<bf16_true>);
static_assert(PrecisionPolicy<with_masters<bf16_true>>);
static_assert(fp32::compute_type == fp32::parameter_type);
static_assert(bf16::compute_type != bf16::parameter_type && !bf16::needs_scaler);
static_assert(fp16::compute_type != fp16::parameter_type && fp16::needs_scaler);
static_assert(bf16_true::compute_type == bf16_true::parameter_type && !bf16_true::master_weights);
static_assert(with_masters<bf16_true>::master_weights);
static_assert(with_masters<bf16_true>::parameter_type == element_type::bfloat16);
static_assert(with_masters<bf16_true>::compute_type == element_type::bfloat16);
static_assert(with_masters<bf16_true>::reduce_type == element_type::bfloat16);

// Archetype.
struct has_axis {
  using axis = precision_axis;
};
template <element_type Type>
struct parameters_of {
  static constexpr element_type parameter_type = Type;
};
template <element_type Type>
struct computes_in {
  static constexpr element_type compute_type = Type;
};
struct has_reduce_type {
  static constexpr element_type reduce_type = element_type::float32;
};
template <bool Fact>
struct scaler {
  static constexpr bool needs_scaler = Fact;
};
template <bool Fact>
struct masters {
  static constexpr bool master_weights = Fact;
};
using has_parameter_type = parameters_of<element_type::float32>;
using has_compute_type = computes_in<element_type::float32>;
using has_needs_scaler = scaler<false>;
using has_master_weights = masters<false>;
using least = archetype<has_axis, has_name, has_parameter_type, has_compute_type, has_reduce_type,
                        has_needs_scaler, has_master_weights>;
static_assert(PrecisionPolicy<least>);

// Near misses: a fact is missing.
static_assert(!PrecisionPolicy<least::without<has_axis>>);
static_assert(!PrecisionPolicy<least::without<has_name>>);
static_assert(!PrecisionPolicy<least::without<has_parameter_type>>);
static_assert(!PrecisionPolicy<least::without<has_compute_type>>);
static_assert(!PrecisionPolicy<least::without<has_reduce_type>>);
static_assert(!PrecisionPolicy<least::without<has_needs_scaler>>);
static_assert(!PrecisionPolicy<least::without<has_master_weights>>);

// A fact is of another type.
struct other_axis {
  using axis = backend_axis;
};
struct int_parameter_type {
  static constexpr int parameter_type = 1;
};
struct int_compute_type {
  static constexpr int compute_type = 1;
};
struct int_reduce_type {
  static constexpr int reduce_type = 1;
};
struct int_needs_scaler {
  static constexpr int needs_scaler = 0;
};
struct int_master_weights {
  static constexpr int master_weights = 0;
};
static_assert(!PrecisionPolicy<least::with<has_axis, other_axis>>);
static_assert(!PrecisionPolicy<least::with<has_name, empty_name>>);
static_assert(!PrecisionPolicy<least::with<has_parameter_type, int_parameter_type>>);
static_assert(!PrecisionPolicy<least::with<has_compute_type, int_compute_type>>);
static_assert(!PrecisionPolicy<least::with<has_reduce_type, int_reduce_type>>);
static_assert(!PrecisionPolicy<least::with<has_needs_scaler, int_needs_scaler>>);
static_assert(!PrecisionPolicy<least::with<has_master_weights, int_master_weights>>);

struct with_state : least {
  int state = 0;
};
static_assert(!PrecisionPolicy<with_state>);
static_assert(!PrecisionPolicy<int>);
static_assert(!PrecisionPolicy<single>);

// Autocast goes from float32 to 16 bit; without it any type computes in itself.
template <element_type Parameters, element_type Compute>
using pair =
    least::with<has_parameter_type, parameters_of<Parameters>>::template with<has_compute_type,
                                                                              computes_in<Compute>>;
static_assert(PrecisionPolicy<pair<element_type::float64, element_type::float64>>);
static_assert(PrecisionPolicy<pair<element_type::float16, element_type::float16>>);
static_assert(PrecisionPolicy<pair<element_type::float32, element_type::float16>>);
static_assert(!PrecisionPolicy<pair<element_type::float32, element_type::float64>>);
static_assert(!PrecisionPolicy<pair<element_type::float64, element_type::bfloat16>>);
static_assert(!PrecisionPolicy<pair<element_type::bfloat16, element_type::float16>>);
static_assert(!PrecisionPolicy<pair<element_type::bfloat16, element_type::float32>>);

// A scaler is for float16 computation on float32 parameters.
template <element_type Parameters, element_type Compute>
using scaled = pair<Parameters, Compute>::template with<has_needs_scaler, scaler<true>>;
static_assert(PrecisionPolicy<scaled<element_type::float32, element_type::float16>>);
static_assert(!PrecisionPolicy<scaled<element_type::float32, element_type::float32>>);
static_assert(!PrecisionPolicy<scaled<element_type::float32, element_type::bfloat16>>);
static_assert(!PrecisionPolicy<scaled<element_type::float16, element_type::float16>>);

// Masters are for 16-bit parameters.
template <element_type Type>
using mastered = pair<Type, Type>::template with<has_master_weights, masters<true>>;
static_assert(PrecisionPolicy<mastered<element_type::bfloat16>>);
static_assert(PrecisionPolicy<mastered<element_type::float16>>);
static_assert(!PrecisionPolicy<mastered<element_type::float32>>);
static_assert(!PrecisionPolicy<mastered<element_type::float64>>);

// What with_masters takes.
static_assert(Accepts<with_masters, bf16_true>);
static_assert(Accepts<with_masters, pair<element_type::float16, element_type::float16>>);
static_assert(!Accepts<with_masters, fp32>);
static_assert(!Accepts<with_masters, bf16>);
static_assert(!Accepts<with_masters, fp16>);
static_assert(!Accepts<with_masters, with_masters<bf16_true>>);
static_assert(!Accepts<with_masters, ddp>);

}  // namespace
}  // namespace accel::testing
