# Debian packages: cpack -G DEB in the build tree. They are made from the install rules by component: "dev" is
# all that has no other.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME shardwise)
set(CPACK_PACKAGE_CONTACT "Shardwise maintainers <maintainers@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL dev filter)
if(SHARDWISE_BUILD_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL command)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME shardwise)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS hdf5-filter-shardwise-zstd)
set(CPACK_COMPONENT_COMMAND_DESCRIPTION "Sharded tensors: the command, which looks at checkpoints, converts them and plans programs")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libshardwise-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(libraries fmt tbb openblas hdf5 zstd xxhash hwy isal png jpeg)
list(TRANSFORM libraries REPLACE "(.+)" "lib\\1-dev")
if(TARGET shardwise_mpi)
  string(REGEX REPLACE "^ompi.*" "openmpi" mpi ${mpi_MODULE_NAME})
  list(APPEND libraries lib${mpi}-dev)
endif()
list(JOIN libraries ", " libraries)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${libraries}, zlib1g-dev, pkg-config")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Sharded tensors: headers, static libraries and the CMake package")

# In the folder in which Debian's HDF5 looks, so that h5dump, h5py and others need no HDF5_PLUGIN_PATH.
set(CPACK_DEBIAN_FILTER_PACKAGE_NAME hdf5-filter-shardwise-zstd)
set(CPACK_DEBIAN_FILTER_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILTER_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_FILTER_DESCRIPTION "Filter 32015 (zstd) for HDF5, with which it reads compressed checkpoints of Shardwise")
install(TARGETS shardwise_h5zstd EXCLUDE_FROM_ALL COMPONENT filter
  LIBRARY DESTINATION lib/${CMAKE_LIBRARY_ARCHITECTURE}/hdf5/serial/plugins)

# For Debian's own Python. What pip installs stays apart.
if(SHARDWISE_BUILD_PYTHON)
  list(APPEND CPACK_COMPONENTS_ALL python)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  math(EXPR next_minor "${Python_VERSION_MINOR} + 1")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-shardwise)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS
    "python3 (>= 3.${Python_VERSION_MINOR}), python3 (<< 3.${next_minor}), python3-numpy, libopenblas0")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS shardwise)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA
    ${PROJECT_SOURCE_DIR}/cmake/python3-shardwise/postinst ${PROJECT_SOURCE_DIR}/cmake/python3-shardwise/prerm)
  set(CPACK_COMPONENT_PYTHON_DESCRIPTION "Sharded tensors: the Python module shardwise")
  set(python_dir lib/python3/dist-packages/shardwise)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/shardwise/ EXCLUDE_FROM_ALL COMPONENT python DESTINATION ${python_dir}
    PATTERN __pycache__ EXCLUDE)
  install(TARGETS _core EXCLUDE_FROM_ALL COMPONENT python LIBRARY DESTINATION ${python_dir})
  install(FILES ${PROJECT_BINARY_DIR}/python/package/shardwise/_core.pyi EXCLUDE_FROM_ALL COMPONENT python
    DESTINATION ${python_dir})
endif()

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE EXCLUDE_FROM_ALL COMPONENT ${component}
    DESTINATION share/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME} RENAME copyright)
endforeach()
include(CPack)
