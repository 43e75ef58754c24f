# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# The compilers that headers without LibTorch are checked with: the one that builds, and one of the other family where it
# is there (g++ >= 12, clang++ >= 16). Sets ACCEL_CHECK_COMPILERS to their short names, and ACCEL_CHECK_gcc,
# ACCEL_CHECK_clang to their paths. Programs are not built with the second one: it only checks syntax and constraints.

find_program(ACCEL_OTHER_GCC NAMES g++ g++-14 g++-13 g++-12)
find_program(ACCEL_OTHER_CLANG NAMES clang++-19 clang++ clang++-18 clang++-17 clang++-16)
mark_as_advanced(ACCEL_OTHER_GCC ACCEL_OTHER_CLANG)

set(ACCEL_CHECK_gcc "${ACCEL_OTHER_GCC}")
set(ACCEL_CHECK_clang "${ACCEL_OTHER_CLANG}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(ACCEL_CHECK_gcc "${CMAKE_CXX_COMPILER}")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(ACCEL_CHECK_clang "${CMAKE_CXX_COMPILER}")
endif()

set(_accel_families gcc clang)
set(_accel_minima 12 16)
set(ACCEL_CHECK_COMPILERS "")
foreach(family minimum IN ZIP_LISTS _accel_families _accel_minima)
  if(ACCEL_CHECK_${family})
    execute_process(COMMAND "${ACCEL_CHECK_${family}}" -dumpversion
      OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(version VERSION_GREATER_EQUAL minimum)
      list(APPEND ACCEL_CHECK_COMPILERS ${family})
    endif()
  endif()
endforeach()
