# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs the build folder BUILD into PREFIX, which is emptied first: a file that is no longer installed must not be found.

file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${PREFIX}" COMMAND_ERROR_IS_FATAL ANY)
