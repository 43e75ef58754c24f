// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The kinds of device that a placement policy speaks of. An enum of our own, because policies
// include nothing of LibTorch; the engines translate it to at::Device and choose the index at run
// time.
#pragma once

#include <string_view>

namespace accel {

enum class device_kind {
  automatic,  ///< cuda if the machine has one, else cpu: decided once, when the program starts
  cpu,
  cuda,
  xla,
};

/// The enumerator's own name.
constexpr std::string_view name_of(device_kind kind) {
  switch (kind) {
    case device_kind::automatic: return "automatic";
    case device_kind::cpu: return "cpu";
    case device_kind::cuda: return "cuda";
    case device_kind::xla: return "xla";
  }
  return "unknown";
}

}  // namespace accel
