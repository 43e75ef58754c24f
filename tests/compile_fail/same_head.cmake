# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DREAL=accelerator.hpp -DSUPPORT=accelerator_head.hpp -P same_head.cmake: the head that the cases use is the head
# of Accelerator itself, so that what the compiler says of the one it says of the other.

function(head_of file class out)
  file(READ "${file}" text)
  string(REPLACE ";" "" text "${text}")
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  string(REGEX MATCH "template <BackendPolicy Backend = single[^{;]*class ${class} " head "${text}")
  if(NOT head)
    message(FATAL_ERROR "no head of ${class} in ${file}")
  endif()
  string(REPLACE "class ${class} " "" head "${head}")
  set(${out} "${head}" PARENT_SCOPE)
endfunction()

head_of("${REAL}" Accelerator real)
head_of("${SUPPORT}" RunnableAccelerator ours)
if(NOT real STREQUAL ours)
  message(FATAL_ERROR "the heads differ; change ${SUPPORT}:\n  ${real}\n  ${ours}")
endif()
