# Runs a part of restart_program.cc, which must print these lines after the number of processes.
function(run_part processes part per_host)
  execute_process(COMMAND ${LAUNCHER} -n ${processes} ${PROGRAM} ${part} ${SCRATCH} ${per_host}
    OUTPUT_VARIABLE found ERROR_VARIABLE errors RESULT_VARIABLE status)
  set(needed "")
  foreach(line ${ARGN})
    string(APPEND needed "${processes} processes ${line}\n")
  endforeach()
  if(NOT status EQUAL 0 OR NOT found STREQUAL needed)
    message(FATAL_ERROR "${part} by ${processes}: status ${status}, printed:\n${found}${errors}\nneeded:\n${needed}")
  endif()
endfunction()
