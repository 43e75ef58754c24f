# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# The library's targets, from the two lists of the top CMakeLists.txt, and the warnings that our own code is held to.

# What accel links is found here, and must be visible where a project that contains accel links accel.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
if(ACCEL_TORCH)
  find_package(ZLIB REQUIRED)  # data sets in compressed IDX files
endif()

# Boost.Hana, range-v3 and protozero are headers only; Debian ships no usable CMake package for some of them.
find_path(ACCEL_HANA_INCLUDE boost/hana.hpp REQUIRED)
find_path(ACCEL_RANGES_INCLUDE range/v3/all.hpp REQUIRED)
find_path(ACCEL_PROTOZERO_INCLUDE protozero/pbf_writer.hpp REQUIRED)

# Warnings for our own targets only: never exported, never applied to LibTorch's headers (they are SYSTEM).
add_library(accel_warnings INTERFACE)
target_compile_options(accel_warnings INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Wno-sign-conversion)
if(ACCEL_WERROR)
  target_compile_options(accel_warnings INTERFACE -Werror)
endif()

# One generated translation unit per .ipp of a list.
function(accel_generated_units out)
  set(units "")
  foreach(name IN LISTS ARGN)
    set(unit "${CMAKE_CURRENT_BINARY_DIR}/units/${name}.cpp")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include <accel/impl/${name}.ipp>\n")
    list(APPEND units "${unit}")
  endforeach()
  set(${out} "${units}" PARENT_SCOPE)
endfunction()

add_library(accel_policies INTERFACE)
add_library(accel::policies ALIAS accel_policies)
set_target_properties(accel_policies PROPERTIES EXPORT_NAME policies)
target_compile_features(accel_policies INTERFACE cxx_std_20)
target_include_directories(accel_policies INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

accel_generated_units(_accel_base_units ${ACCEL_BASE_SOURCES})
add_library(accel_base STATIC ${_accel_base_units})
add_library(accel::base ALIAS accel_base)
set_target_properties(accel_base PROPERTIES EXPORT_NAME base POSITION_INDEPENDENT_CODE ON)
target_link_libraries(accel_base
  PUBLIC accel_policies fmt::fmt nlohmann_json::nlohmann_json Threads::Threads
  PRIVATE $<BUILD_INTERFACE:accel_warnings> yaml-cpp spdlog::spdlog)
target_include_directories(accel_base SYSTEM PRIVATE ${ACCEL_PROTOZERO_INCLUDE} ${ACCEL_RANGES_INCLUDE})

if(ACCEL_TORCH)
  include(AccelLibTorch)
  if(ACCEL_LIBTORCH_PROBLEM)
    message(FATAL_ERROR "accel: ${ACCEL_LIBTORCH_PROBLEM}")
  endif()
  include(AccelGloo)
  accel_generated_units(_accel_torch_units ${ACCEL_TORCH_SOURCES})
  add_library(accel_accel STATIC ${_accel_torch_units})
  add_library(accel::accel ALIAS accel_accel)
  set_target_properties(accel_accel PROPERTIES EXPORT_NAME accel OUTPUT_NAME accel POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(accel_accel
    PUBLIC accel_base accel::libtorch PRIVATE $<BUILD_INTERFACE:accel_warnings> ZLIB::ZLIB)
  target_include_directories(accel_accel SYSTEM PRIVATE ${ACCEL_GLOO_INCLUDE})
  if(ACCEL_CUDA)
    target_compile_definitions(accel_accel PRIVATE ACCEL_WITH_CUDA)
    target_link_libraries(accel_accel PUBLIC accel::libtorch_cuda)
  endif()
endif()
