include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardwise)

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
