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
  -Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Wno-sign-conversion
  $<$<CXX_COMPILER_ID:Clang>:-Wno-shadow>)  # it takes [&model = model] of a structured binding for a fault
# Only those of the compilers that the tests run with are faults of ours: g++ 14 at -O3 takes atomics of a member that is
# built in place for ones at address zero.
if(ACCEL_WERROR)
  target_compile_options(accel_warnings INTERFACE
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Werror>)
endif()

# Files that speak CUDA. They are compiled alone, so that a build with ACCEL_CUDA differs from one without in them only.
set(_accel_cuda_bodies
  comm/executable_batch_size comm/partial_state comm/transports engine/device_memory engine/profile)

# accel_generated_units(out size names...): translation units, each of the .ipp of up to `size` names. Of the 18 s of a file
# that includes LibTorch, LibTorch takes 14; a batch has them once. So names in unnamed namespaces are used once in the
# library, and what a file lacks of includes shows with ACCEL_UNITY=OFF (preset dev).
function(accel_generated_units out size)
  set(units "")
  set(batched "")
  foreach(name IN LISTS ARGN)
    set(unit "${CMAKE_CURRENT_BINARY_DIR}/units/${name}.cpp")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include <accel/impl/${name}.ipp>\n")
    if(size EQUAL 1 OR name IN_LIST _accel_cuda_bodies)
      list(APPEND units "${unit}")
    else()
      list(APPEND batched "${name}")
    endif()
  endforeach()
  while(batched)
    list(SUBLIST batched 0 ${size} batch)
    list(REMOVE_ITEM batched ${batch})
    list(GET batch 0 first)
    list(TRANSFORM batch REPLACE "(.+)" "#include <accel/impl/\\1.ipp>\n")
    list(JOIN batch "" batch)
    set(unit "${CMAKE_CURRENT_BINARY_DIR}/batches/${first}.cpp")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "${batch}")
    list(APPEND units "${unit}")
  endwhile()
  set(${out} "${units}" PARENT_SCOPE)
endfunction()

set(_accel_batch_size 1)
if(ACCEL_UNITY)
  set(_accel_batch_size 8)
endif()

add_library(accel_policies INTERFACE)
add_library(accel::policies ALIAS accel_policies)
set_target_properties(accel_policies PROPERTIES EXPORT_NAME policies)
target_compile_features(accel_policies INTERFACE cxx_std_20)
target_include_directories(accel_policies INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

accel_generated_units(_accel_base_units ${_accel_batch_size} ${ACCEL_BASE_SOURCES})
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
  # Clang keeps what it instantiates of a precompiled header in it. GCC does so again in each file, and gains nothing.
  set(_accel_library_pch OFF)
  if(ACCEL_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(_accel_library_pch ON)
    set(_accel_batch_size 1)
  endif()
  accel_generated_units(_accel_torch_units ${_accel_batch_size} ${ACCEL_TORCH_SOURCES})
  add_library(accel_accel STATIC ${_accel_torch_units})
  add_library(accel::accel ALIAS accel_accel)
  if(_accel_library_pch)
    target_precompile_headers(accel_accel PRIVATE <torch/torch.h> <torch/csrc/distributed/c10d/ProcessGroup.hpp>)
  endif()
  set_target_properties(accel_accel PROPERTIES EXPORT_NAME accel OUTPUT_NAME accel POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(accel_accel
    PUBLIC accel_base accel::libtorch PRIVATE $<BUILD_INTERFACE:accel_warnings> ZLIB::ZLIB)
  target_include_directories(accel_accel SYSTEM PRIVATE ${ACCEL_GLOO_INCLUDE})
  if(ACCEL_CUDA)
    list(TRANSFORM _accel_cuda_bodies PREPEND "${CMAKE_CURRENT_BINARY_DIR}/units/" OUTPUT_VARIABLE _accel_cuda_units)
    list(TRANSFORM _accel_cuda_units APPEND ".cpp")
    set_source_files_properties(${_accel_cuda_units} PROPERTIES
      COMPILE_DEFINITIONS "ACCEL_WITH_CUDA;USE_C10D_NCCL" COMPILE_OPTIONS "${ACCEL_CUDA_INCLUDES}")
    target_link_libraries(accel_accel PUBLIC accel::libtorch_cuda)
  endif()
endif()
