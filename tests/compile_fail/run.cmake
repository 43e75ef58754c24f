# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# One compile-fail case: cmake -DCOMPILER=... -DINCLUDE=... -DSUPPORT=... -DCASE=file.cpp -P run.cmake
#
# The file as it is has to compile; with -DACCEL_BAD it must not, and the compiler has to print every sentence that the
# file expects (one `// expect: <regex>` a line). Expectations are sentences of ours, since compilers word the rest
# differently: each begins with "accel: " or "use ". g++ prints a sentence as its source stands, so one that fills two
# literals is expected on two lines.

set(compile "${COMPILER}" -std=c++20 -fsyntax-only "-I${INCLUDE}" "-I${SUPPORT}" "${CASE}")

file(STRINGS "${CASE}" expectations REGEX "^// expect: ")
if(NOT expectations)
  message(FATAL_ERROR "${CASE} expects nothing: write a line '// expect: <regex>'")
endif()

execute_process(COMMAND ${compile} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message("${output}")
  message(FATAL_ERROR "the good form does not compile")
endif()

execute_process(COMMAND ${compile} -DACCEL_BAD RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "the bad form compiles")
endif()

foreach(expectation IN LISTS expectations)
  string(REGEX REPLACE "^// expect: " "" regex "${expectation}")
  if(NOT regex MATCHES "^(accel: |use )")
    message(FATAL_ERROR "not a sentence of ours: '${regex}'")
  endif()
  if(NOT output MATCHES "${regex}")
    message("${output}")
    message(FATAL_ERROR "the compiler does not say '${regex}'")
  endif()
endforeach()
