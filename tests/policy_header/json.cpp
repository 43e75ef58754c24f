// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The header that Accelerate's own default file becomes.
#include <accel_policies.hpp>

#include <concepts>
#include <string_view>

static_assert(std::same_as<python::Backend, accel::single>);
static_assert(std::same_as<python::Precision, accel::fp16>);
static_assert(std::same_as<python::Accumulation, accel::accumulate<1>>);
static_assert(std::same_as<python::Placement, accel::on<accel::automatic>>);

std::string_view json_backend() { return python::Backend::name; }
