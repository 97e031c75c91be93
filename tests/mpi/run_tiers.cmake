# A host is lost: its processes take copies that others hold. Then all are lost, and another number of processes
# goes on from the durable root.
include(${CMAKE_CURRENT_LIST_DIR}/run_part.cmake)

# run_tiers(BEFORE PER_HOST LOST_HOST AFTER PER_HOST FILES LAST)
function(run_tiers before per_host lost after now_per_host files last)
  file(REMOVE_RECURSE ${SCRATCH})
  run_part(${before} save_tiers ${per_host} "saved step 3, the durable one is 1")
  if(NOT IS_DIRECTORY ${SCRATCH}/host${lost})
    message(FATAL_ERROR "there is no host ${lost}")
  endif()
  file(REMOVE_RECURSE ${SCRATCH}/host${lost})
  run_part(${after} go_on ${now_per_host} "restored step 3 of the fast tier, ${files} files from others"
    "saved step 4, the durable one is 4")
  file(GLOB hosts ${SCRATCH}/host*)
  file(REMOVE_RECURSE ${hosts})
  run_part(${last} restore_durable 1 "restored step 4 of the durable tier, 0 files from others")
endfunction()

# Shard file r is that of process r, of which the next host has a copy; files 0 and 1 have what all devices need.
# So of four, where 2 is lost, process 0 takes file 1, 2 takes 0, 1 and 2, and 3 takes 0 and 1.
run_tiers(2 1 1 2 1 2 4)
run_tiers(4 1 2 4 1 6 2)
run_tiers(4 2 0 2 1 6 3)  # of four processes on two hosts, on as two
