// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The whole table of what goes together is proved while its header is compiled; here, that the list
// is the one of all shipped policies and that a wrong table would be noticed.

#include <accel/policy/matrix.hpp>

namespace accel::testing {
namespace {

namespace matrix = detail::matrix;

static_assert(matrix::combinations == 10 * 5 * 3 * 28);
static_assert(matrix::table_agrees());

// One mark changed, in each direction.
static_assert(matrix::agrees<ddp>(".SP.SP..SP.SP..SP.SP.DDDDDDD", "....."));
static_assert(!matrix::agrees<ddp>("..P.SP..SP.SP..SP.SP.DDDDDDD", "....."));
static_assert(!matrix::agrees<ddp>("SSP.SP..SP.SP..SP.SP.DDDDDDD", "....."));
static_assert(!matrix::agrees<ddp>(".PP.SP..SP.SP..SP.SP.DDDDDDD", "....."));
static_assert(!matrix::agrees<ddp>(".SP.SP..SP.SP..SP.SP.DDDDDDD", "..F.."));
static_assert(!matrix::agrees<ddp>(".SP.SP..SP.SP..SP.SP.DDDDDD", "....."));
static_assert(!matrix::agrees<ddp>(".SP.SP..SP.SP..SP.SP.DDDDDDD", "...."));

}  // namespace
}  // namespace accel::testing
