# Processes divide a reshard: their files are those that one process writes as the same number of writers.
# What is wrong on all is said once, and nothing is left.
file(REMOVE_RECURSE ${SCRATCH})

function(reshard to)
  execute_process(COMMAND ${ARGN} reshard ${SOURCE} ${SCRATCH}/${to} --mesh data=2,model=3
    OUTPUT_VARIABLE found ERROR_VARIABLE errors RESULT_VARIABLE status)
  set(found "${found}" PARENT_SCOPE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: status ${status}, printed:\n${found}${errors}")
  endif()
endfunction()

foreach(ranks 2 3 4)
  reshard(together_${ranks} ${LAUNCHER} -n ${ranks} ${PROGRAM})
  if(NOT found MATCHES " by ${ranks} processes\n$")
    message(FATAL_ERROR "printed:\n${found}")
  endif()
  execute_process(COMMAND ${PROGRAM} reshard ${SOURCE} ${SCRATCH}/alone_${ranks} --mesh data=2,model=3 --writers ${ranks}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${PROGRAM} verify ${SCRATCH}/together_${ranks} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB files RELATIVE ${SCRATCH}/alone_${ranks} ${SCRATCH}/alone_${ranks}/*/*.h5)
  list(LENGTH files count)
  if(NOT count GREATER ranks)
    message(FATAL_ERROR "${count} files of ${ranks} writers")
  endif()
  foreach(name ${files})
    execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${SCRATCH}/alone_${ranks}/${name}
      ${SCRATCH}/together_${ranks}/${name} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()

execute_process(COMMAND ${LAUNCHER} -n 3 ${PROGRAM} reshard ${SOURCE} ${SCRATCH}/together_3 --mesh data=2,model=3
  OUTPUT_VARIABLE found ERROR_VARIABLE errors RESULT_VARIABLE status)
string(REGEX MATCHALL "shardwise: [^\n;]*is already there" said "${errors}")
list(LENGTH said times)
if(status EQUAL 0 OR NOT times EQUAL 1)
  message(FATAL_ERROR "status ${status}, ${times} times, printed:\n${found}${errors}")
endif()
file(GLOB left ${SCRATCH}/together_3/*)
list(LENGTH left steps)
if(NOT steps EQUAL 1)
  message(FATAL_ERROR "left: ${left}")
endif()
