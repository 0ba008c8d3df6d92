# The Lua of `protocol/lua/{canonical,extension}` becomes one C++ table, with the SHA-1 that the server will answer.
# `protocol/lua/fragments` holds parts that the committed full texts already contain, and stays out.
set(ECHOMQ_LUA_DIR "${PROJECT_SOURCE_DIR}/protocol/lua")
set(ECHOMQ_SCRIPTS_CPP "${PROJECT_BINARY_DIR}/generated/scripts_generated.cpp")
file(GLOB_RECURSE ECHOMQ_LUA_FILES CONFIGURE_DEPENDS "${ECHOMQ_LUA_DIR}/canonical/*.lua"
     "${ECHOMQ_LUA_DIR}/extension/*.lua")

# Written only when it changes: a script that was removed must leave the table too, and no file is newer then.
set(ECHOMQ_LUA_LIST "${PROJECT_BINARY_DIR}/generated/scripts.list")
list(JOIN ECHOMQ_LUA_FILES "\n" echomq_lua_lines)
file(CONFIGURE OUTPUT "${ECHOMQ_LUA_LIST}" CONTENT "@echomq_lua_lines@\n" @ONLY)

add_custom_command(
  OUTPUT "${ECHOMQ_SCRIPTS_CPP}"
  COMMAND "${CMAKE_COMMAND}" "-DLUA_DIR=${ECHOMQ_LUA_DIR}" "-DLUA_LIST=${ECHOMQ_LUA_LIST}" "-DOUT=${ECHOMQ_SCRIPTS_CPP}"
          -P "${PROJECT_SOURCE_DIR}/cmake/embed_scripts.cmake"
  DEPENDS ${ECHOMQ_LUA_FILES} "${ECHOMQ_LUA_LIST}" "${PROJECT_SOURCE_DIR}/cmake/embed_scripts.cmake"
  COMMENT "Embedding the scripts of protocol/lua"
  VERBATIM)
# Clang doubts that every compiler takes literals above 64 kB; ours do.
set_source_files_properties("${ECHOMQ_SCRIPTS_CPP}" PROPERTIES COMPILE_OPTIONS -Wno-overlength-strings)
