# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# One compile-fail case: cmake -DCOMPILER=... -DINCLUDE=... -DSUPPORT=... [-DSYSTEM=a|b] -DCASE=file.cpp -P run.cmake
#
# The file as it is has to compile; with -DACCEL_BAD it must not, and the compiler has to print every sentence that the
# file expects (one `// expect: <regex>` a line). Expectations are sentences of ours, since compilers word the rest
# differently: each begins with "accel: " or "use ". g++ prints a sentence as its source stands, so one that fills two
# literals is expected on two lines.

# CMake breaks the lines of an error where the paths in it happen to be long; a notice stays as it is written.
function(fail reason)
  message(NOTICE "${reason}")
  message(FATAL_ERROR "compile-fail case failed")
endfunction()

set(compile "${COMPILER}" -std=c++20 -fsyntax-only "-I${INCLUDE}" "-I${SUPPORT}")
if(COMPILER MATCHES "clang")
  list(APPEND compile -ferror-limit=0)
endif()
string(REPLACE "|" ";" system "${SYSTEM}")
foreach(folder IN LISTS system)
  list(APPEND compile -isystem "${folder}")
endforeach()
list(APPEND compile "${CASE}")

file(STRINGS "${CASE}" expectations REGEX "^// expect: ")
if(NOT expectations)
  fail("${CASE} expects nothing: write a line '// expect: <regex>'")
endif()

execute_process(COMMAND ${compile} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message("${output}")
  fail("the good form does not compile")
endif()

execute_process(COMMAND ${compile} -DACCEL_BAD RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  fail("the bad form compiles")
endif()

foreach(expectation IN LISTS expectations)
  string(REGEX REPLACE "^// expect: " "" regex "${expectation}")
  if(NOT regex MATCHES "^(accel: |use )")
    fail("not a sentence of ours: '${regex}'")
  endif()
  if(NOT output MATCHES "${regex}")
    message("${output}")
    fail("the compiler does not say '${regex}'")
  endif()
endforeach()
