# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# accel_policy_header(target CONFIG file.yaml [NAMESPACE ns]): at build time accel-config turns the file into
# accel_policies.hpp, and the target finds it with #include <accel_policies.hpp>. Changing the file makes the header anew; an
# unchanged header keeps its time. Works in accel's own build, with accel as a subdirectory, and with an installed accel.

# The program: a target of this build, or the installed one beside this file's prefix.
function(_accel_find_config_program out)
  if(TARGET accel-config)
    set(${out} accel-config PARENT_SCOPE)
    return()
  endif()
  get_filename_component(prefix "${CMAKE_CURRENT_FUNCTION_LIST_DIR}" DIRECTORY)
  set(places "")
  while(NOT prefix STREQUAL "/" AND NOT prefix STREQUAL "")
    list(APPEND places "${prefix}/bin")
    get_filename_component(above "${prefix}" DIRECTORY)
    if(above STREQUAL prefix)
      break()
    endif()
    set(prefix "${above}")
  endwhile()
  find_program(ACCEL_CONFIG_PROGRAM accel-config HINTS ${places})
  if(NOT ACCEL_CONFIG_PROGRAM)
    message(FATAL_ERROR
      "accel_policy_header needs the program accel-config, which was not found. Build accel with -DACCEL_PROGRAMS=ON, or "
      "name it: cmake -DACCEL_CONFIG_PROGRAM=/path/to/accel-config ...")
  endif()
  set(${out} "${ACCEL_CONFIG_PROGRAM}" PARENT_SCOPE)
endfunction()

function(accel_policy_header target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "CONFIG;NAMESPACE" "")
  if(NOT TARGET ${target})
    message(FATAL_ERROR "accel_policy_header: there is no target '${target}'; call it after add_executable or add_library")
  endif()
  if(NOT arg_CONFIG OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "accel_policy_header(${target} CONFIG file.yaml [NAMESPACE ns]): got '${ARGN}'")
  endif()
  if(NOT arg_NAMESPACE)
    set(arg_NAMESPACE configured)
  endif()
  get_filename_component(config "${arg_CONFIG}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
  _accel_find_config_program(program)

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/accel_policies/${target}")
  set(header "${folder}/accel_policies.hpp")
  # The stamp carries the time of the last run, the header that of its last change.
  add_custom_command(OUTPUT "${folder}.stamp" BYPRODUCTS "${header}"
    COMMAND ${program} header --config_file "${config}" --output "${header}" --namespace "${arg_NAMESPACE}"
    COMMAND "${CMAKE_COMMAND}" -E touch "${folder}.stamp"
    DEPENDS "${config}" ${program} COMMENT "Policies of ${target} from ${arg_CONFIG}" VERBATIM)
  add_custom_target(${target}_accel_policies DEPENDS "${folder}.stamp")
  add_dependencies(${target} ${target}_accel_policies)

  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    target_include_directories(${target} INTERFACE "$<BUILD_INTERFACE:${folder}>")
  else()
    target_include_directories(${target} PRIVATE "${folder}")
  endif()
endfunction()
