# find_package(shardwise COMPONENTS ...): what each component finds, what it needs not, and what is said where
# something is missing.
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})

# Runs a command; its output goes to `out`. Its exit status must be zero exactly where `expected` is "passes".
function(run expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if((expected STREQUAL "passes" AND NOT status EQUAL 0) OR (expected STREQUAL "fails" AND status EQUAL 0))
    message(FATAL_ERROR "status ${status} of ${ARGN}\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

# Configures the user's project in a fresh folder; HIDDEN packages are not found there.
function(configure expected name)
  cmake_parse_arguments(ARG "" "PROGRAM" "WANTED;OPTIONAL;UNWANTED;HIDDEN" ${ARGN})
  foreach(list WANTED OPTIONAL UNWANTED)
    list(JOIN ARG_${list} "," ARG_${list})
  endforeach()
  list(TRANSFORM ARG_HIDDEN REPLACE "(.+)" "-DCMAKE_DISABLE_FIND_PACKAGE_\\1=TRUE")
  run(${expected} ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/tests/install/components -B ${SCRATCH}/${name}
    -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${SCRATCH}/prefix
    "-DWANTED=${ARG_WANTED}" "-DOPTIONAL=${ARG_OPTIONAL}" "-DUNWANTED=${ARG_UNWANTED}" "-DPROGRAM=${ARG_PROGRAM}"
    ${ARG_HIDDEN})
  string(REGEX REPLACE "[ \n]+" " " out "${out}")  # CMake breaks long lines
  set(out "${out}" PARENT_SCOPE)
endfunction()

function(check_said text)
  string(FIND "${out}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "not said: ${text}\n${out}")
  endif()
endfunction()

run(passes ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)

# shard needs fmt alone.
configure(passes shard WANTED shard PROGRAM shard.cc
  HIDDEN PkgConfig HDF5 TBB ZLIB Threads nlohmann_json OpenBLAS
  UNWANTED shardwise::runtime shardwise::checkpoint TBB::tbb PkgConfig::hdf5)
run(passes ${CMAKE_COMMAND} --build ${SCRATCH}/shard)
run(passes ${SCRATCH}/shard/program)

# jobs, and the components below it, need no BLAS and no zlib.
configure(passes jobs WANTED jobs PROGRAM ${SOURCE}/examples/02_save_here_load_there.cc HIDDEN ZLIB nlohmann_json
  UNWANTED shardwise::programs shardwise::loader PkgConfig::openblas ZLIB::ZLIB)
run(passes ${CMAKE_COMMAND} --build ${SCRATCH}/jobs)
run(passes ${CMAKE_COMMAND} -E chdir ${SCRATCH}/jobs ${SCRATCH}/jobs/program)

# Only mend, and components above it, need ISA-L.
configure(passes checkpoint WANTED checkpoint UNWANTED shardwise::mend shardwise::jobs PkgConfig::isal)

# A copy into a bucket needs no component but the checkpoint's.
configure(passes bucket WANTED bucket UNWANTED shardwise::mend shardwise::jobs PkgConfig::isal)

configure(passes runtime WANTED runtime HIDDEN PkgConfig UNWANTED PkgConfig::openblas shardwise::storage)
configure(passes all WANTED shard storage runtime programs mpi loader checkpoint bucket mend jobs reshape tiers convert program_files)

configure(fails unknown WANTED shard chekpoint)
check_said("component chekpoint is not known, needed is one of shard, storage, runtime, programs, mpi, loader, checkpoint, bucket, mend, jobs, reshape, tiers, convert, program_files")
configure(fails missing WANTED programs checkpoint HIDDEN PkgConfig TBB)
check_said("component programs needs package TBB, pkg-config module openblas")
check_said("component checkpoint needs pkg-config module hdf5, pkg-config module libxxhash")
configure(passes optional WANTED shard OPTIONAL checkpoint unknown HIDDEN PkgConfig)
