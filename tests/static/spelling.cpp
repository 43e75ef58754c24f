// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The member `name` of a policy is the text that names its type in a program, and the parts that
// build it.

#include <accel/detail/spelling.hpp>
#include <accel/detail/fixed_string.hpp>
#include <accel/policies.hpp>

#include <cstdint>
#include <limits>

namespace models {
struct Block;
template <class Part>
struct Stack;
}  // namespace models

namespace accel::testing {
namespace {

static_assert(single::name == "single" && ddp::name == "ddp" && xla::name == "xla");
static_assert(sharded<zero3>::name == "sharded<zero3>");
static_assert(sharded<zero3, wrap_auto>::name == "sharded<zero3>");
static_assert(sharded<hybrid<fsdp_zero2>>::name == "sharded<hybrid<fsdp_zero2>>");
static_assert(sharded<zero2, wrap_by_size>::name == "sharded<zero2, wrap_by_size>");
static_assert(sharded<zero3, wrap<models::Block>>::name == "sharded<zero3, wrap<models::Block>>");
static_assert(wrap<models::Block, models::Stack<int>>::name ==
              "wrap<models::Block, models::Stack<int>>");
static_assert(with_masters<bf16_true>::name == "with_masters<bf16_true>");
static_assert(accumulate<1>::name == "accumulate<1>");
static_assert(accumulate<1024>::name == "accumulate<1024>");
static_assert(accumulate<dynamic>::name == "accumulate<dynamic>");
static_assert(on<automatic>::name == "on<automatic>");
static_assert(on<xla_device>::name == "on<xla_device>");
static_assert(on<cpu, offload<optimizer_state>>::name == "on<cpu, offload<optimizer_state>>");
static_assert(on<cuda, offload<parameters, optimizer_state>, recomputed<wrap_by_size>>::name ==
              "on<cuda, offload<parameters, optimizer_state>, recomputed<wrap_by_size>>");

static_assert(name_of(element_type::float64) == "float64");
static_assert(name_of(element_type::float32) == "float32");
static_assert(name_of(element_type::bfloat16) == "bfloat16");
static_assert(name_of(element_type::float16) == "float16");
static_assert(name_of(device_kind::automatic) == "automatic");
static_assert(name_of(device_kind::cpu) == "cpu");
static_assert(name_of(device_kind::cuda) == "cuda");
static_assert(name_of(device_kind::xla) == "xla");

static_assert(detail::decimal<0>().view() == "0");
static_assert(detail::decimal<-7>().view() == "-7");
static_assert(detail::decimal<10>().view() == "10");
static_assert(detail::decimal<std::numeric_limits<std::int64_t>::max()>().view() ==
              "9223372036854775807");
static_assert(detail::decimal<std::numeric_limits<std::int64_t>::min()>().view() ==
              "-9223372036854775808");
static_assert(detail::fixed_string("").view().empty());
static_assert(("a" + detail::fixed_string("b") + "c").view() == "abc");
static_assert(detail::text<"same"> == "same");
static_assert(detail::type_name<int>() == "int");
static_assert(detail::type_name<models::Stack<models::Block>>() == "models::Stack<models::Block>");

}  // namespace
}  // namespace accel::testing
