// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Policies are empty and take no space.

#include <accel/policies.hpp>

#include <boost/hana/for_each.hpp>

#include <accel/policy/matrix.hpp>

namespace accel::testing {
namespace {

namespace hana = boost::hana;
namespace matrix = detail::matrix;

template <class Backend, class Precision, class Accumulation, class Placement>
struct Holder {
  [[no_unique_address]] Backend backend;
  [[no_unique_address]] Precision precision;
  [[no_unique_address]] Accumulation accumulation;
  [[no_unique_address]] Placement placement;
  int state;
};

template <class List>
constexpr bool all_empty(const List& policies) {
  bool empty = true;
  hana::for_each(policies, [&]<class Policy>(hana::basic_type<Policy>) {
    empty = empty && std::is_empty_v<Policy> && std::is_trivially_default_constructible_v<Policy>;
  });
  return empty;
}
static_assert(all_empty(matrix::backends));
static_assert(all_empty(matrix::precisions));
static_assert(all_empty(matrix::accumulations));
static_assert(all_empty(matrix::placements));

static_assert(sizeof(Holder<single, fp32, accumulate<1>, on<automatic>>) == sizeof(int));
static_assert(sizeof(Holder<ddp, fp16, accumulate<dynamic>, on<cuda>>) == sizeof(int));
static_assert(
    sizeof(Holder<sharded<hybrid<zero3>, wrap<struct Block>>, with_masters<bf16_true>,
                  accumulate<4>, on<cuda, offload<optimizer_state, parameters>, recomputed<>>>) ==
    sizeof(int));
static_assert(sizeof(Holder<xla, bf16, accumulate<1>, on<xla_device>>) == sizeof(int));

}  // namespace
}  // namespace accel::testing
