// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether ranks were given the same: what they are told where they were not, before it makes them
// wait for each other or train on different things. Comes after communicator.hpp.
#pragma once

#include <accel/comm/communicator.hpp>

#include <string>
#include <string_view>

namespace accel::detail {

/// Compares what every rank describes, a line a fact. Throws Error(collective) on every rank, with
/// the first line that differs, in the sentence "the ranks <do>: rank 0 has '..' where rank 2 has
/// '..'. <cure>". Every rank must call this.
void require_agreement(const Communicator& communicator, const std::string& lines,
                       std::string_view what_ranks_do, std::string_view cure);

}  // namespace accel::detail
