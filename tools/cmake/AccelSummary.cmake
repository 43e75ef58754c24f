# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# The table at the end of the configure step: what was found, what is missing, and what that turns off.

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

# accel_summary_line(name value hint): the value, or "missing" and what to type, or what is off without it.
function(accel_summary_line name value hint)
  string(LENGTH "${name}" length)
  math(EXPR padding "12 - ${length}")
  string(REPEAT " " ${padding} blank)
  if(NOT value OR value MATCHES "NOTFOUND$")
    set(value "missing (${hint})")
  endif()
  message(STATUS "  ${name}${blank}${value}")
endfunction()

find_package(benchmark QUIET)
find_program(ACCEL_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
find_program(ACCEL_MPICXX NAMES mpicxx mpic++)
mark_as_advanced(ACCEL_NVCC ACCEL_MPICXX)

set(_accel_libtorch "off (ACCEL_TORCH=OFF)")
if(ACCEL_TORCH)
  set(_accel_libtorch "${ACCEL_LIBTORCH_VERSION} in ${ACCEL_LIBTORCH_ROOT}")
endif()
set(_accel_parts policies base)
foreach(part accel programs tests examples bench)
  string(TOUPPER "ACCEL_${part}" option)
  string(REPLACE ACCEL_ACCEL ACCEL_TORCH option "${option}")
  if(${option} AND (ACCEL_TORCH OR NOT part MATCHES "examples|bench") AND (TARGET accel_test_support OR NOT part STREQUAL tests))
    list(APPEND _accel_parts ${part})
  endif()
endforeach()
list(JOIN _accel_parts ", " _accel_parts)

message(STATUS "accel ${PROJECT_VERSION}")
accel_summary_line(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}" "")
accel_summary_line(LibTorch "${_accel_libtorch}" "")
if(ACCEL_TORCH)
  accel_summary_line(Gloo "${ACCEL_GLOO_INCLUDE}" "")
  accel_summary_line(CUDA "${ACCEL_NVCC}" "CUDA code is neither built nor tested")
  accel_summary_line(MPI "${ACCEL_MPICXX}" "tests inside an MPI program are off")
endif()
accel_summary_line(Catch2 "${Catch2_DIR}" "tests are off; type tools/setup test")
accel_summary_line(benchmark "${benchmark_DIR}" "benchmarks that use it are off; type tools/setup bench")
accel_summary_line(targets "${_accel_parts}" "")
