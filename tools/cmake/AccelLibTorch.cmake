# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Finds LibTorch and wraps it once, as the imported targets accel::libtorch and (with ACCEL_CUDA) accel::libtorch_cuda, which
# AccelCuda.cmake defines. find_package(Torch) is not used: on a CUDA build of LibTorch it demands a CUDA toolkit even from
# programs that run on the CPU, and it carries flags and run paths that would be exported to everybody.
#
# The place is taken from, in this order: LIBTORCH (CMake or environment), CMAKE_PREFIX_PATH, the folder that tools/setup fills.

set(ACCEL_LIBTORCH_VERSION 2.11.0)

# Every place that may hold LibTorch, as the folder that has include/torch and lib/libtorch_cpu.so.
function(accel_libtorch_candidates out)
  set(places ${LIBTORCH} $ENV{LIBTORCH} ${CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
  list(APPEND places ${from_environment})
  if(DEFINED ENV{ACCEL_CACHE})
    list(APPEND places "$ENV{ACCEL_CACHE}/libtorch-${ACCEL_LIBTORCH_VERSION}")
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    list(APPEND places "$ENV{XDG_CACHE_HOME}/accel/libtorch-${ACCEL_LIBTORCH_VERSION}")
  else()
    list(APPEND places "$ENV{HOME}/.cache/accel/libtorch-${ACCEL_LIBTORCH_VERSION}")
  endif()
  set(found "")
  foreach(place IN LISTS places)
    # A prefix may be the folder itself, a wheel's parent, or .../share/cmake[/Torch] inside it.
    foreach(root "${place}" "${place}/torch" "${place}/../.." "${place}/../../..")
      if(EXISTS "${root}/lib/libtorch_cpu.so" AND EXISTS "${root}/include/torch/csrc/api/include/torch/torch.h")
        get_filename_component(root "${root}" ABSOLUTE)
        list(APPEND found "${root}")
      endif()
    endforeach()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# The version a folder holds, from its own header.
function(accel_libtorch_version root out)
  set(header "${root}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${header}")
    set(header "${root}/include/torch/csrc/api/include/torch/version.h")
  endif()
  file(STRINGS "${header}" lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  set(version "")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "[^0-9]*([0-9]+).*" "\\1" number "${line}")
    list(APPEND version ${number})
  endforeach()
  list(JOIN version "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Sets ACCEL_LIBTORCH_PROBLEM to a sentence where there is none that fits, and defines the targets otherwise. The caller says
# whether that is fatal: it is for accel's own build, and not for an installed accel that only lends its policies.
set(ACCEL_LIBTORCH_PROBLEM "")
accel_libtorch_candidates(_accel_candidates)
if(NOT _accel_candidates)
  set(ACCEL_LIBTORCH_PROBLEM
    "LibTorch ${ACCEL_LIBTORCH_VERSION} was not found. Type tools/setup to get it, or name an existing one: cmake -DLIBTORCH=/path/to/libtorch ...")
  return()
endif()
list(GET _accel_candidates 0 ACCEL_LIBTORCH_ROOT)
accel_libtorch_version("${ACCEL_LIBTORCH_ROOT}" _accel_found_version)
if(NOT _accel_found_version VERSION_EQUAL ACCEL_LIBTORCH_VERSION)
  string(CONCAT ACCEL_LIBTORCH_PROBLEM
    "the LibTorch in ${ACCEL_LIBTORCH_ROOT} has version '${_accel_found_version}', and accel is built and tested with "
    "${ACCEL_LIBTORCH_VERSION} only (interfaces that it uses change between releases). Type tools/setup to get that one, "
    "or name it: cmake -DLIBTORCH=/path/to/libtorch ...")
  return()
endif()

if(NOT TARGET accel::libtorch)
  add_library(accel::libtorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(accel::libtorch SYSTEM INTERFACE
    "${ACCEL_LIBTORCH_ROOT}/include" "${ACCEL_LIBTORCH_ROOT}/include/torch/csrc/api/include")
  # LibTorch carries headers of an fmt of its own, newer than the distribution's, which its include folder puts first and
  # whose compiled half it does not export. Header-only, the two live side by side (each version has its own namespace).
  target_compile_definitions(accel::libtorch INTERFACE USE_C10D_GLOO FMT_HEADER_ONLY=1)
  # Clang 18 changed how it mangles constrained templates, and no longer finds functions of a LibTorch that GCC compiled
  # (const_data_ptr is one; llvm/llvm-project#102443).
  target_compile_options(accel::libtorch INTERFACE
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>)
  # The old kind of run path: the libraries that libtorch_cpu needs in turn are found through it too.
  target_link_options(accel::libtorch INTERFACE
    "LINKER:--disable-new-dtags" "LINKER:-rpath,${ACCEL_LIBTORCH_ROOT}/lib")
  target_link_libraries(accel::libtorch INTERFACE
    "${ACCEL_LIBTORCH_ROOT}/lib/libtorch_cpu.so" "${ACCEL_LIBTORCH_ROOT}/lib/libc10.so")
endif()

# A program against LibTorch's strings: where its ABI is not this compiler's, linking fails, and here it fails with a reason.
if(NOT ACCEL_LIBTORCH_ABI_CHECKED STREQUAL "${ACCEL_LIBTORCH_ROOT}")
  set(_accel_probe "${CMAKE_CURRENT_BINARY_DIR}/libtorch_abi.cpp")
  file(WRITE "${_accel_probe}"
    "#include <string>\nnamespace at { std::string get_mkl_version(); }\n"
    "int main() { return at::get_mkl_version().size() > 100000; }\n")
  try_compile(_accel_abi_works "${CMAKE_CURRENT_BINARY_DIR}/libtorch_abi" "${_accel_probe}"
    LINK_LIBRARIES accel::libtorch OUTPUT_VARIABLE _accel_abi_output)
  if(NOT _accel_abi_works)
    string(CONCAT ACCEL_LIBTORCH_PROBLEM
      "a program that uses std::string does not link with the LibTorch in ${ACCEL_LIBTORCH_ROOT}. Most often that "
      "LibTorch was built with the old string ABI (_GLIBCXX_USE_CXX11_ABI=0); type tools/setup to get one that fits.\n"
      "${_accel_abi_output}")
    return()
  endif()
  set(ACCEL_LIBTORCH_ABI_CHECKED "${ACCEL_LIBTORCH_ROOT}" CACHE INTERNAL "the LibTorch whose ABI was proved")
endif()

if(ACCEL_CUDA)
  include("${CMAKE_CURRENT_LIST_DIR}/AccelCuda.cmake")
endif()
