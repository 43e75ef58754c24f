# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DCOMPILER=... -DINCLUDE=... -P door.cmake: accel/policies.hpp compiles alone, is not longer than it should be with
# what it includes, and includes nothing but headers of detail and policy and the standard library's.

function(run_compiler out)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "#include <accel/policies.hpp>"
    COMMAND "${COMPILER}" -std=c++20 "-I${INCLUDE}" ${ARGN} -x c++ -
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT result EQUAL 0 OR errors)
    message(FATAL_ERROR "accel/policies.hpp does not compile alone:\n${errors}")
  endif()
  set(${out} "${output}" PARENT_SCOPE)
endfunction()

run_compiler(nothing -fsyntax-only -Wall -Wextra -Werror)
# The cost, as a number that does not depend on the machine: 15,000 lines, nearly all of them the standard library's.
run_compiler(source -E -P)
string(REGEX REPLACE "[^\n]+" "" line_ends "${source}")
string(LENGTH "${line_ends}" lines)
if(lines GREATER 20000)
  message(FATAL_ERROR "accel/policies.hpp has grown to ${lines} lines with what it includes, more than 20000")
endif()

run_compiler(rule -M)

string(REGEX REPLACE "[ \\\n]+" ";" headers "${rule}")
set(ours 0)
foreach(header IN LISTS headers)
  if(header MATCHES "/accel/")
    math(EXPR ours "${ours} + 1")
    if(NOT header MATCHES "/accel/(policies\\.hpp|(policy|detail)/[a-z_]+\\.hpp)$")
      message(FATAL_ERROR "the light door includes a header of a layer above: ${header}")
    endif()
  elseif(header MATCHES "torch|ATen|c10|boost|hana|fmt|nlohmann")
    message(FATAL_ERROR "the light door includes another library: ${header}")
  endif()
endforeach()
if(ours LESS 10)
  message(FATAL_ERROR "only ${ours} headers of accel in the list, which cannot be right:\n${rule}")
endif()
