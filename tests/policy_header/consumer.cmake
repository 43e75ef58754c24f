# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Configures and builds consumer/ against the installed accel; then changes its YAML, damages it, and mends it.

function(run result output)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  set(${result} "${code}" PARENT_SCOPE)
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

function(expect what code wanted_code text wanted_text)
  if(NOT code EQUAL wanted_code OR NOT text MATCHES "${wanted_text}")
    message(FATAL_ERROR "${what}: exit code ${code} (wanted ${wanted_code}), output (wanted ${wanted_text}):\n${text}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(COPY "${SOURCE}/" DESTINATION "${WORK}/source")
set(ENV{CMAKE_PREFIX_PATH} "")
run(code text "${CMAKE_COMMAND}" -S "${WORK}/source" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_PREFIX_PATH=${PREFIX}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}")
expect("configure" "${code}" 0 "${text}" "Generating done")

set(build "${CMAKE_COMMAND}" --build "${WORK}/build")
run(code text ${build})
expect("first build" "${code}" 0 "${text}" "Policies of consumer from accel.yaml")
run(code text "${WORK}/build/consumer")
expect("first run" "${code}" 0 "${text}" "single fp32 accumulate<2> on<automatic>")

run(code text ${build})
if(text MATCHES "consumer.cpp" OR NOT code EQUAL 0)
  message(FATAL_ERROR "a build with nothing to do compiled something:\n${text}")
endif()

# A comment changes the file and not the header.
file(APPEND "${WORK}/source/accel.yaml" "# a comment\n")
run(code text ${build})
if(text MATCHES "consumer.cpp" OR NOT code EQUAL 0)
  message(FATAL_ERROR "an unchanged header was compiled again:\n${text}")
endif()

file(APPEND "${WORK}/source/accel.yaml" "mixed_precision: bf16\n")
run(code text ${build})
expect("build after a change" "${code}" 0 "${text}" "consumer.cpp")
run(code text "${WORK}/build/consumer")
expect("run after a change" "${code}" 0 "${text}" "single bf16 accumulate<2> on<automatic>")

file(APPEND "${WORK}/source/accel.yaml" "num_proceses: 2\n")
run(code text ${build})
expect("build of a wrong file" "${code}" 1 "${text}"
  "accel.yaml:6: 'num_proceses': unknown key; did you mean 'num_processes'\\?")
