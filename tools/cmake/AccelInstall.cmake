# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# What `cmake --install` puts where, so that find_package(accel) works. One export set per component: policies needs nothing,
# base the packages that accelConfig.cmake finds again, accel LibTorch. tests/consumer builds projects against the result.

include(CMakePackageConfigHelpers)

option(ACCEL_INSTALL "Install accel together with the project that contains it" ${PROJECT_IS_TOP_LEVEL})
if(NOT ACCEL_INSTALL)
  return()
endif()

set(_accel_package "${CMAKE_INSTALL_LIBDIR}/cmake/accel")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/accel" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN impl EXCLUDE)

set(_accel_components policies base)
if(ACCEL_TORCH)
  list(APPEND _accel_components accel)
endif()
foreach(component IN LISTS _accel_components)
  install(TARGETS accel_${component} EXPORT accel_${component})
  install(EXPORT accel_${component} NAMESPACE accel:: FILE accel-${component}.cmake DESTINATION "${_accel_package}")
endforeach()

configure_package_config_file("${PROJECT_SOURCE_DIR}/tools/cmake/accelConfig.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/accelConfig.cmake" INSTALL_DESTINATION "${_accel_package}"
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/accelConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/accelConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/accelConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/tools/cmake/AccelCuda.cmake" "${PROJECT_SOURCE_DIR}/tools/cmake/AccelLibTorch.cmake"
  "${PROJECT_SOURCE_DIR}/tools/cmake/AccelPolicyHeader.cmake" DESTINATION "${_accel_package}")
