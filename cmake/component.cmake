# One component: a static library, its public headers, and an include root that only it and its
# users see. The root <build>/include/<component>/shardwise/<component> is a link to the source
# folder, so that everybody writes "shardwise/<component>/x.h" and an upward include does not compile.
#
#   shardwise_component(shard HEADERS mesh.h SOURCES mesh.cc DEPENDS ... PRIVATE_DEPENDS ...)
#
# DEPENDS are components, PRIVATE_DEPENDS other libraries; those of headers alone, which a user of the
# installed library does not need, are given as $<BUILD_INTERFACE:...>.
#
# FOLDER names the source folder where it is not the component's name: two libraries in one folder.
# BELOW names the folder that it is in, for a room of another component: checkpoint/jobs is "shardwise/jobs/x.h".
function(shardwise_component component)
  cmake_parse_arguments(ARG "" "FOLDER;BELOW" "HEADERS;SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(folder ${component})
  if(ARG_FOLDER)
    set(folder ${ARG_FOLDER})
  endif()
  set(source ${PROJECT_SOURCE_DIR}/${ARG_BELOW}/${folder})
  cmake_path(NORMAL_PATH source)
  set(root ${PROJECT_BINARY_DIR}/include/${component})
  file(MAKE_DIRECTORY ${root}/shardwise)
  file(CREATE_LINK ${source} ${root}/shardwise/${folder} SYMBOLIC)

  list(TRANSFORM ARG_HEADERS PREPEND ${folder}/ OUTPUT_VARIABLE headers)
  set_property(GLOBAL PROPERTY SHARDWISE_HEADERS_${component} ${headers})
  list(TRANSFORM ARG_HEADERS PREPEND ${root}/shardwise/${folder}/)
  list(TRANSFORM ARG_SOURCES PREPEND ${source}/)
  add_library(shardwise_${component} STATIC ${ARG_SOURCES})
  add_library(shardwise::${component} ALIAS shardwise_${component})
  set_target_properties(shardwise_${component} PROPERTIES
    EXPORT_NAME ${component}
    POSITION_INDEPENDENT_CODE ON
    VERIFY_INTERFACE_HEADER_SETS ON)
  target_compile_features(shardwise_${component} PUBLIC cxx_std_20)
  target_sources(shardwise_${component} PUBLIC FILE_SET HEADERS BASE_DIRS ${root} FILES ${ARG_HEADERS})
  target_link_libraries(shardwise_${component} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
  set_property(GLOBAL APPEND PROPERTY SHARDWISE_COMPONENTS ${component})
  set_property(GLOBAL PROPERTY SHARDWISE_DEPENDS_${component} ${ARG_DEPENDS})
  set_property(GLOBAL PROPERTY SHARDWISE_PRIVATE_DEPENDS_${component} ${ARG_PRIVATE_DEPENDS})
  if(SHARDWISE_INSTALL)
    install(TARGETS shardwise_${component} EXPORT shardwise_${component} FILE_SET HEADERS)
  endif()
endfunction()

# All components but MPI's, which few programs want to link: shardwise::shardwise, and the header
# "shardwise/shardwise.h" that includes their public headers.
function(shardwise_all_components)
  get_property(components GLOBAL PROPERTY SHARDWISE_COMPONENTS)
  list(REMOVE_ITEM components mpi)
  set(text "")
  foreach(component IN LISTS components)
    get_property(headers GLOBAL PROPERTY SHARDWISE_HEADERS_${component})
    list(SORT headers)
    list(TRANSFORM headers REPLACE "(.+)" "#include \"shardwise/\\1\"\n")
    list(JOIN headers "" includes)
    string(APPEND text "\n${includes}")
  endforeach()
  set(root ${PROJECT_BINARY_DIR}/include/all)
  file(CONFIGURE OUTPUT ${root}/shardwise/shardwise.h @ONLY CONTENT
    "#pragma once\n\n// Every public header but MPI's. For programs that link shardwise::shardwise.\n@text@")
  add_library(shardwise_all INTERFACE)
  add_library(shardwise::shardwise ALIAS shardwise_all)
  set_target_properties(shardwise_all PROPERTIES EXPORT_NAME shardwise VERIFY_INTERFACE_HEADER_SETS ON)
  target_sources(shardwise_all INTERFACE FILE_SET HEADERS BASE_DIRS ${root} FILES ${root}/shardwise/shardwise.h)
  list(TRANSFORM components PREPEND shardwise::)
  target_link_libraries(shardwise_all INTERFACE ${components})
  set_property(GLOBAL APPEND PROPERTY SHARDWISE_COMPONENTS shardwise)
  set_property(GLOBAL PROPERTY SHARDWISE_DEPENDS_shardwise ${components})
  if(SHARDWISE_INSTALL)
    install(TARGETS shardwise_all EXPORT shardwise_shardwise FILE_SET HEADERS)
  endif()
endfunction()
