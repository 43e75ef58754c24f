// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The whole table of what goes together: every shipped policy of each axis, and for each pair
// whether the rules of compatible.hpp let it be. The table is written by hand and the compiler
// proves that the rules agree with it, for every combination of the four axes. The page
// docs/policies.md is printed from it (tools/check/print_policies.cpp). Needs Boost.Hana, so
// policies.hpp does not include it.
#pragma once

#include <accel/policy/compatible.hpp>

#include <boost/hana/flatten.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>
#include <boost/hana/type.hpp>
#include <boost/hana/unpack.hpp>

#include <array>
#include <cstddef>
#include <string_view>

namespace accel::detail::matrix {

namespace hana = boost::hana;

inline constexpr auto backends =
    hana::tuple_t<single, ddp, sharded<zero1>, sharded<zero2>, sharded<zero3>, sharded<fsdp_zero2>,
                  sharded<hybrid<zero2>>, sharded<hybrid<zero3>>, sharded<hybrid<fsdp_zero2>>, xla>;

inline constexpr auto precisions =
    hana::tuple_t<fp32, bf16, fp16, bf16_true, with_masters<bf16_true>>;

inline constexpr auto accumulations =
    hana::tuple_t<accumulate<1>, accumulate<4>, accumulate<dynamic>>;

// With the default units only: whatever the units, the facts that rules ask for are the same.
template <class Device>
inline constexpr auto placements_on =
    hana::tuple_t<on<Device>, on<Device, offload<optimizer_state>>,
                  on<Device, offload<optimizer_state, parameters>>, on<Device, recomputed<>>,
                  on<Device, offload<optimizer_state>, recomputed<>>,
                  on<Device, offload<optimizer_state, parameters>, recomputed<>>,
                  on<Device, offload<activations>>>;

inline constexpr auto placements = hana::flatten(hana::make_tuple(
    placements_on<automatic>, placements_on<cpu>, placements_on<cuda>, placements_on<xla_device>));

template <class... Types>
constexpr std::size_t size_of(const hana::tuple<Types...>&) {
  return sizeof...(Types);
}

inline constexpr std::size_t combinations =
    size_of(backends) * size_of(precisions) * size_of(accumulations) * size_of(placements);

/// The rules between axes, in the order in which ComposablePolicies asks.
enum class rule : char {
  none = '.',
  records_on_xla = 'X',
  runs_on_device = 'D',
  stays_in_graph = 'G',
  recomputes_on = 'R',
  scales_loss_on = 'F',
  offloads_parameters_on = 'P',
  offloads_state_on = 'S',
};

/// A row a backend, a column a placement: '.' where they go together, else the rule that refuses.
inline constexpr std::array<std::string_view, size_of(backends)> backend_by_placement{
    // clang-format off
    // automatic  cpu      cuda   xla_device
    ".SP.SP." ".SP.SP." ".SP.SP." "DDDDDDD",  // single
    ".SP.SP." ".SP.SP." ".SP.SP." "DDDDDDD",  // ddp
    "..P..P." "..P..P." "..P..P." "DDDDDDD",  // sharded<zero1>
    "..P..P." "..P..P." "..P..P." "DDDDDDD",  // sharded<zero2>
    "......." "......." "......." "DDDDDDD",  // sharded<zero3>
    "......." "......." "......." "DDDDDDD",  // sharded<fsdp_zero2>
    "..P..P." "..P..P." "..P..P." "DDDDDDD",  // sharded<hybrid<zero2>>
    "......." "......." "......." "DDDDDDD",  // sharded<hybrid<zero3>>
    "......." "......." "......." "DDDDDDD",  // sharded<hybrid<fsdp_zero2>>
    "XXXXXXX" "XXXXXXX" "XXXXXXX" ".GGRGGG",  // xla
    // clang-format on
};

/// A row a backend, a column a precision.
inline constexpr std::array<std::string_view, size_of(backends)> backend_by_precision{
    // fp32, bf16, fp16, bf16_true, with_masters<bf16_true>
    ".....",  // single
    ".....",  // ddp
    ".....",  // sharded<zero1>
    ".....",  // sharded<zero2>
    ".....",  // sharded<zero3>
    ".....",  // sharded<fsdp_zero2>
    ".....",  // sharded<hybrid<zero2>>
    ".....",  // sharded<hybrid<zero3>>
    ".....",  // sharded<hybrid<fsdp_zero2>>
    "..F..",  // xla
};

/// The first rule that refuses the pair.
template <class Backend, class Placement>
constexpr rule refusal_by_placement() {
  if (!RecordsOnXla<Backend, Placement>) return rule::records_on_xla;
  if (!RunsOnDevice<Placement, Backend>) return rule::runs_on_device;
  if (!StaysInGraph<Placement, Backend>) return rule::stays_in_graph;
  if (!RecomputesOn<Placement, Backend>) return rule::recomputes_on;
  if (!OffloadsParametersOn<Placement, Backend>) return rule::offloads_parameters_on;
  if (!OffloadsStateOn<Placement, Backend>) return rule::offloads_state_on;
  return rule::none;
}

template <class Backend, class Precision>
constexpr rule refusal_by_precision() {
  return ScalesLossOn<Precision, Backend> ? rule::none : rule::scales_loss_on;
}

/// The rules agree with the row of the two tables, and ComposablePolicies is true of exactly the
/// combinations that neither of them refuses.
template <class Backend>
constexpr bool agrees(std::string_view by_placement, std::string_view by_precision) {
  constexpr auto refusals =
      hana::unpack(placements, []<class... Placements>(hana::basic_type<Placements>...) {
        return std::array{static_cast<char>(refusal_by_placement<Backend, Placements>())...};
      });
  if (by_placement != std::string_view(refusals.data(), refusals.size())) return false;

  bool agree = by_precision.size() == size_of(precisions);
  std::size_t row = 0;
  hana::for_each(precisions, [&]<class Precision>(hana::basic_type<Precision>) {
    const char refusal = static_cast<char>(refusal_by_precision<Backend, Precision>());
    agree = agree && by_precision[row++] == refusal;
    hana::for_each(accumulations, [&]<class Accumulation>(hana::basic_type<Accumulation>) {
      std::size_t column = 0;
      hana::for_each(placements, [&]<class Placement>(hana::basic_type<Placement>) {
        const bool expected = by_placement[column++] == '.' && refusal == '.';
        agree =
            agree && ComposablePolicies<Backend, Precision, Accumulation, Placement> == expected;
      });
    });
  });
  return agree;
}

constexpr bool table_agrees() {
  std::size_t row = 0;
  bool agree = true;
  hana::for_each(backends, [&]<class Backend>(hana::basic_type<Backend>) {
    agree = agree && agrees<Backend>(backend_by_placement[row], backend_by_precision[row]);
    ++row;
  });
  return agree;
}
static_assert(table_agrees());

}  // namespace accel::detail::matrix
