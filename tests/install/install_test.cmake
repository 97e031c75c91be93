# Configures, builds and runs the consumer against the installed package or the source tree (WAY).
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out
    WORKING_DIRECTORY ${SCRATCH})
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "status ${status} of ${ARGN}\n${out}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/tests/install/consumer -B ${SCRATCH}/build
  -D CMAKE_CXX_COMPILER=${COMPILER})
if(WAY STREQUAL "find_package")
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
  foreach(file bin/shardwise share/man/man1/shardwise.1 share/man/man1/shardwise-bench-save.1
               share/bash-completion/completions/shardwise)
    if(NOT EXISTS ${SCRATCH}/prefix/${file})
      message(FATAL_ERROR "${file} is not installed")
    endif()
  endforeach()
  run(${configure} -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH=${SCRATCH}/prefix)
else()
  # -O0 and unity files: this one is about the build, and the libraries are compiled a second time for it.
  run(${configure} -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_FLAGS_DEBUG=-O0 -D CMAKE_UNITY_BUILD=ON
    -D SHARDWISE_SOURCE=${SOURCE})
endif()
run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target consumer)
run(${SCRATCH}/build/consumer)
if(WAY STREQUAL "find_package")
  # All components by one header; and without CMake, by pkg-config.
  run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target everything)
  run(${SCRATCH}/build/everything)
  foreach(pair main=shardwise-jobs\ shardwise-loader everything=shardwise)
    string(REGEX MATCH "^(.*)=(.*)$" pair ${pair})
    run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${SCRATCH}/prefix/lib/pkgconfig
      sh -ec "${COMPILER} -std=c++20 ${SOURCE}/tests/install/consumer/${CMAKE_MATCH_1}.cc $(pkg-config --cflags --libs ${CMAKE_MATCH_2}) -o by_pkg_config")
    run(${SCRATCH}/by_pkg_config)
  endforeach()
  # The zstd filter where it is installed to.
  run(${CMAKE_COMMAND} -E env HDF5_PLUGIN_PATH=${SCRATCH}/prefix/lib/hdf5/plugins
    /usr/bin/python3 ${SOURCE}/tests/checkpoint/hdf5/hdf5_tools.py ${BUILD}/tests/checkpoint/checkpoint_h5py_writer)
endif()
