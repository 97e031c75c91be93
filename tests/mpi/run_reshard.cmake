# Processes divide a reshard, and an import: their files are those that one process writes as the same number of writers.
# What is wrong on all is said once, and nothing is left.
file(REMOVE_RECURSE ${SCRATCH})

set(command reshard ${SOURCE})
set(step "")
function(reshard to)
  execute_process(COMMAND ${ARGN} ${command} ${SCRATCH}/${to} --mesh data=2,model=3 ${step}
    OUTPUT_VARIABLE found ERROR_VARIABLE errors RESULT_VARIABLE status)
  set(found "${found}" PARENT_SCOPE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: status ${status}, printed:\n${found}${errors}")
  endif()
endfunction()

# What `ranks` processes have written is what one process writes as this number of writers.
function(compare to ranks writers)
  if(NOT found MATCHES " by ${ranks} processes\n$")
    message(FATAL_ERROR "printed:\n${found}")
  endif()
  list(GET command 0 kind)
  set(alone ${SCRATCH}/alone_${kind}_${writers})
  if(NOT EXISTS ${alone})
    execute_process(COMMAND ${PROGRAM} ${command} ${alone} --mesh data=2,model=3 ${step} --writers ${writers}
      OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  endif()
  execute_process(COMMAND ${PROGRAM} verify ${SCRATCH}/${to} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB files RELATIVE ${alone} ${alone}/*/*.h5)
  file(GLOB written ${SCRATCH}/${to}/*/*.h5)
  list(LENGTH files needed)
  list(LENGTH written count)
  if(NOT count EQUAL needed OR NOT count GREATER writers)
    message(FATAL_ERROR "${count} files of ${writers} writers, needed ${needed}")
  endif()
  foreach(name ${files})
    execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${alone}/${name} ${SCRATCH}/${to}/${name}
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endfunction()

foreach(ranks 2 3 4)
  reshard(together_${ranks} ${LAUNCHER} -n ${ranks} ${PROGRAM})
  compare(together_${ranks} ${ranks} ${ranks})
endforeach()

execute_process(COMMAND ${PROGRAM} export ${SOURCE} ${SCRATCH}/weights.safetensors
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(command import ${SCRATCH}/weights.safetensors)
set(step --step 3)
reshard(imported ${LAUNCHER} -n 3 ${PROGRAM})
compare(imported 3 3)

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
