# Runs PROGRAM in an empty folder SCRATCH and compares its output with the file EXPECTED.
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
execute_process(COMMAND ${PROGRAM} WORKING_DIRECTORY ${SCRATCH}
  OUTPUT_VARIABLE found RESULT_VARIABLE status)
file(READ ${EXPECTED} needed)
if(NOT status EQUAL 0 OR NOT found STREQUAL needed)
  message(FATAL_ERROR "status ${status}, printed:\n${found}\nneeded:\n${needed}")
endif()
