# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DPROGRAM=... -DHEADERS=... -DPAGE=... -DSCRATCH=... -P same_page.cmake: the page is the output, byte for byte.

execute_process(COMMAND "${PROGRAM}" "${HEADERS}" OUTPUT_FILE "${SCRATCH}" RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${result}")
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" -E compare_files "${SCRATCH}" "${PAGE}" RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PAGE} is not what ${PROGRAM} prints now; type: cp ${SCRATCH} ${PAGE}")
endif()
