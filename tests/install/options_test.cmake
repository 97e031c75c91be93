# The source tree configures without each of its parts.
foreach(option BUILD_TOOLS BUILD_TESTS BUILD_BENCH BUILD_EXAMPLES INSTALL)
  file(REMOVE_RECURSE ${SCRATCH})
  execute_process(
    COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${SCRATCH} -D CMAKE_CXX_COMPILER=${COMPILER}
            -D SHARDWISE_${option}=OFF
    RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "SHARDWISE_${option}=OFF does not configure:\n${out}")
  endif()
endforeach()
