# Runs PROGRAM in an empty folder SCRATCH and compares its output with the file EXPECTED. Then once more in
# the same folder: a reader types it twice, and what the first run has left must not stop the second.
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
file(READ ${EXPECTED} needed)
foreach(run first second)
  execute_process(COMMAND ${PROGRAM} WORKING_DIRECTORY ${SCRATCH}
    OUTPUT_VARIABLE found RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT found STREQUAL needed)
    message(FATAL_ERROR "${run} run: status ${status}, printed:\n${found}\nneeded:\n${needed}")
  endif()
endforeach()
