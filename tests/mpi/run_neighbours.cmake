# What two processes write into one file is what each would write into its own, for another number of processes
# that read it each for itself, in pairs, or one for all (restart_program.cc compares).
include(${CMAKE_CURRENT_LIST_DIR}/run_part.cmake)
foreach(savers 2 4)
  math(EXPR pairs "${savers} / 2")
  math(EXPR readers "6 - ${savers}")
  file(REMOVE_RECURSE ${SCRATCH})
  run_part(${savers} save 1 "saved pairs in ${pairs} files" "saved plain in ${savers} files")
  run_part(${readers} restore 1 "restored both")
endforeach()
