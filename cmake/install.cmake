include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardwise)

# shardwise-<component>.pc, and shardwise.pc for all, for programs that are built without CMake. The libraries are
# static, so a program links what they need, too. Uses the lists of the loop below.
set(SHARDWISE_MODULE_OF_fmt fmt)
set(SHARDWISE_MODULE_OF_TBB tbb)
set(SHARDWISE_MODULE_OF_ZLIB zlib)
set(SHARDWISE_MODULE_OF_PNG libpng)
set(SHARDWISE_MODULE_OF_JPEG libjpeg)
file(RELATIVE_PATH from_pkg_config ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
function(shardwise_pkg_config component)
  list(TRANSFORM uses PREPEND shardwise- OUTPUT_VARIABLE requires)
  list(TRANSFORM modules REPLACE "^.*=" "" OUTPUT_VARIABLE names)
  list(APPEND requires ${names})
  set(libs "-lshardwise_${component}")
  foreach(package IN LISTS packages)
    if(package STREQUAL "Threads")
      string(APPEND libs " -pthread")
    else()
      list(APPEND requires ${SHARDWISE_MODULE_OF_${package}})
    endif()
  endforeach()
  list(JOIN requires ", " requires)
  set(name shardwise-${component})
  set(what "component ${component}")
  if(component STREQUAL "shardwise")
    set(name shardwise)
    set(what "all components but mpi")
    set(libs "")
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/pkgconfig/${name}.pc @ONLY CONTENT
[=[prefix=${pcfiledir}/@from_pkg_config@
Name: @name@
Description: Sharded tensors, @what@ (C++20)
Version: @PROJECT_VERSION@
Requires: @requires@
Libs: -L${prefix}/@CMAKE_INSTALL_LIBDIR@ @libs@
Cflags: -I${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
]=])
  install(FILES ${PROJECT_BINARY_DIR}/pkgconfig/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# What each component needs, from what it was declared with: other components, CMake packages, and
# modules of pkg-config as TARGET=MODULE. Components come after those that they use.
get_property(components GLOBAL PROPERTY SHARDWISE_COMPONENTS)
set(SHARDWISE_NEEDS "set(_shardwise_components ${components})\n")
foreach(component IN LISTS components)
  get_property(uses GLOBAL PROPERTY SHARDWISE_DEPENDS_${component})
  get_property(needs GLOBAL PROPERTY SHARDWISE_PRIVATE_DEPENDS_${component})
  list(TRANSFORM uses REPLACE "^shardwise::" "")
  list(FILTER needs EXCLUDE REGEX "BUILD_INTERFACE")
  set(packages "")
  set(modules "")
  foreach(need IN LISTS needs)
    if(need MATCHES "^PkgConfig::(.*)")
      set(module ${SHARDWISE_MODULES})
      list(FILTER module INCLUDE REGEX "^${CMAKE_MATCH_1}=")
      list(APPEND modules ${module})
    else()
      string(REGEX REPLACE "::.*" "" package ${need})
      list(APPEND packages ${package})
    endif()
  endforeach()
  foreach(list uses packages modules)
    list(JOIN ${list} " " words)
    string(APPEND SHARDWISE_NEEDS "set(_shardwise_${component}_${list} ${words})\n")
  endforeach()
  install(EXPORT shardwise_${component} NAMESPACE shardwise:: DESTINATION ${package_dir})
  shardwise_pkg_config(${component})
endforeach()

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/shardwiseConfig.cmake.in
  ${PROJECT_BINARY_DIR}/shardwiseConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardwiseConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardwiseConfig.cmake
  ${PROJECT_BINARY_DIR}/shardwiseConfigVersion.cmake
  DESTINATION ${package_dir})
