# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Gloo's code is inside libtorch_cpu; its headers are not in LibTorch, so the distribution's are used by the one file that
# opens a group (impl/comm/communicator.ipp). tests/distributed proves the pair with a two-rank all-reduce.

find_path(ACCEL_GLOO_INCLUDE gloo/config.h)
if(NOT ACCEL_GLOO_INCLUDE)
  message(FATAL_ERROR "accel: Gloo's headers were not found. Type tools/setup, or apt-get install libgloo-dev.")
endif()
