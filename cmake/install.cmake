include(CMakePackageConfigHelpers)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/shardwiseConfig.cmake.in
  ${PROJECT_BINARY_DIR}/shardwiseConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardwise)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardwiseConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(EXPORT ShardwiseTargets NAMESPACE shardwise::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardwise)
install(FILES ${PROJECT_BINARY_DIR}/shardwiseConfig.cmake
  ${PROJECT_BINARY_DIR}/shardwiseConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardwise)
