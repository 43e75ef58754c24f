// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The header that sharded.yaml becomes. It declares the classes in wrap<...>, which are defined
// after it here.
#include <accel_policies.hpp>

#include <concepts>
#include <string_view>

struct BlockImpl {};
namespace my {
struct HeadImpl {};
}  // namespace my

namespace {

using Units = accel::wrap<BlockImpl, my::HeadImpl>;

static_assert(std::same_as<my::app::Backend, accel::sharded<accel::hybrid<accel::zero3>, Units>>);
static_assert(std::same_as<my::app::Precision, accel::with_masters<accel::bf16_true>>);
static_assert(std::same_as<my::app::Accumulation, accel::accumulate<accel::dynamic>>);
static_assert(
    std::same_as<my::app::Placement,
                 accel::on<accel::cuda, accel::offload<accel::optimizer_state, accel::parameters>,
                           accel::recomputed<Units>>>);
static_assert(accel::ComposablePolicies<my::app::Backend, my::app::Precision, my::app::Accumulation,
                                        my::app::Placement>);

}  // namespace

std::string_view sharded_backend() { return my::app::Backend::name; }
