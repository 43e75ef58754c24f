# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# With ACCEL_CUDA: accel::libtorch_cuda, which is accel::libtorch with LibTorch's CUDA half. The
# toolkit gives cudart and headers only; no file of accel is compiled by nvcc. Comes after AccelLibTorch.cmake, and reports as
# it does.

find_package(CUDAToolkit 13.0 QUIET)  # the release that LibTorch's wheel was built with
find_path(ACCEL_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(ACCEL_NCCL_INCLUDE)

if(NOT CUDAToolkit_FOUND OR NOT ACCEL_NCCL_INCLUDE)
  string(CONCAT ACCEL_LIBTORCH_PROBLEM
    "ACCEL_CUDA=ON needs the CUDA toolkit 13 and the header nccl.h, and this machine lacks one of them (toolkit: "
    "'${CUDAToolkit_VERSION}', nccl.h: '${ACCEL_NCCL_INCLUDE}'). Install NVIDIA's packages cuda-toolkit-13-0 and "
    "libnccl-dev, name them with -DCUDAToolkit_ROOT=... and -DACCEL_NCCL_INCLUDE=..., or configure without ACCEL_CUDA.")
  return()
endif()
if(NOT EXISTS "${ACCEL_LIBTORCH_ROOT}/lib/libtorch_cuda.so")
  string(CONCAT ACCEL_LIBTORCH_PROBLEM
    "ACCEL_CUDA=ON needs a LibTorch built for CUDA, and the one in ${ACCEL_LIBTORCH_ROOT} has no libtorch_cuda.so. Type "
    "tools/setup to get one that has, and name no other, or configure without ACCEL_CUDA.")
  return()
endif()

if(NOT TARGET accel::libtorch_cuda)
  add_library(accel::libtorch_cuda INTERFACE IMPORTED GLOBAL)
  # A program may be linked where libraries that libtorch_cuda needs (cuFile, NVSHMEM, ...) are not installed.
  target_link_options(accel::libtorch_cuda INTERFACE "LINKER:--unresolved-symbols=ignore-in-shared-libs")
  # libtorch_cuda registers its kernels when it is loaded; nothing refers to it, and a linker would leave it out.
  target_link_libraries(accel::libtorch_cuda INTERFACE accel::libtorch
    "-Wl,--push-state,--no-as-needed,${ACCEL_LIBTORCH_ROOT}/lib/libtorch_cuda.so,--pop-state"
    "${ACCEL_LIBTORCH_ROOT}/lib/libc10_cuda.so" CUDA::cudart)
endif()

# For the few files of accel that speak CUDA.
set(ACCEL_CUDA_INCLUDES "")
foreach(folder IN LISTS CUDAToolkit_INCLUDE_DIRS ACCEL_NCCL_INCLUDE)
  list(APPEND ACCEL_CUDA_INCLUDES -isystem "${folder}")
endforeach()
