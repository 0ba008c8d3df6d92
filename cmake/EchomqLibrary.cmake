# One set of objects, two libraries: `echomq` (shared, installed, exports `echomq::v1` alone) and `echomq_static` (for
# the tool, the tests and the benches, which may look inside).
#
# Objects keep the default visibility and the linker script decides what leaves the shared library: so nobody has to
# mark a class for export, and no symbol of Boost, fmt or the standard library's templates gets out.
set(ECHOMQ_EXPORTS "${PROJECT_SOURCE_DIR}/packaging/exports.map")

file(GLOB ECHOMQ_ROOM_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/*/*.cpp")
set(ECHOMQ_TESTING_SOURCES ${ECHOMQ_ROOM_SOURCES})
set(ECHOMQ_JOURNAL_SOURCES ${ECHOMQ_ROOM_SOURCES})
list(FILTER ECHOMQ_ROOM_SOURCES EXCLUDE REGEX "/src/(testing|journal)/")
list(FILTER ECHOMQ_TESTING_SOURCES INCLUDE REGEX "/src/testing/")
list(FILTER ECHOMQ_JOURNAL_SOURCES INCLUDE REGEX "/src/journal/")

if(CMAKE_CXX_CLANG_TIDY)
  set_property(SOURCE ${ECHOMQ_ROOM_SOURCES} ${ECHOMQ_TESTING_SOURCES} APPEND
               PROPERTY OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/.clang-tidy")
endif()

# What every file of this repository compiles with: both include roots and the private dependencies.
add_library(echomq_inside INTERFACE)
target_compile_features(echomq_inside INTERFACE cxx_std_23)
target_include_directories(echomq_inside INTERFACE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(echomq_inside INTERFACE echomq_build_flags echomq_boost_asio echomq_boost_json
                                              echomq_zstd fmt::fmt-header-only Threads::Threads)

# echomq_add_objects(<target> <source>...)
function(echomq_add_objects target)
  add_library(${target} OBJECT ${ARGN})
  target_link_libraries(${target} PRIVATE echomq_inside echomq_warnings)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON VISIBILITY_INLINES_HIDDEN ON
                                             CXX_EXTENSIONS OFF)
  # Calls inside the library are not meant to be replaced from outside, so the compiler may inline them.
  target_compile_options(${target} PRIVATE -fno-semantic-interposition)
  foreach(source IN LISTS ARGN)
    get_filename_component(room "${source}" DIRECTORY)
    get_filename_component(room "${room}" NAME)
    echomq_unite(${target} "${source}" ${room})
  endforeach()
endfunction()

# echomq_add_shared(<target> <objects> <exported name>)
function(echomq_add_shared target objects export_name)
  add_library(${target} SHARED $<TARGET_OBJECTS:${objects}>)
  add_library(echomq::${export_name} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_23)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PUBLIC Threads::Threads PRIVATE $<BUILD_INTERFACE:echomq_inside>)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${ECHOMQ_EXPORTS}" LINKER:-Bsymbolic-functions
                      LINKER:--as-needed)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
                                             SOVERSION ${PROJECT_VERSION_MAJOR} EXPORT_NAME ${export_name}
                                             LINK_DEPENDS "${ECHOMQ_EXPORTS}")
endfunction()

# echomq_add_static(<target> <objects> <alias>)
function(echomq_add_static target objects alias)
  add_library(${target} STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${objects}>)
  add_library(echomq::${alias} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_23)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${target} PUBLIC Threads::Threads PRIVATE echomq_inside)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

echomq_add_objects(echomq_objects ${ECHOMQ_ROOM_SOURCES} "${ECHOMQ_SCRIPTS_CPP}")
echomq_precompile(echomq_objects <fmt/format.h> <echomq/client.hpp> <echomq/queue.hpp>)
echomq_add_shared(echomq echomq_objects echomq)
echomq_add_static(echomq_static echomq_objects static)

if(ECHOMQ_TESTING_SOURCES)
  echomq_add_objects(echomq_testing_objects ${ECHOMQ_TESTING_SOURCES})
  echomq_add_shared(echomq_testing echomq_testing_objects testing)
  target_link_libraries(echomq_testing PUBLIC echomq)
  echomq_add_static(echomq_testing_static echomq_testing_objects testing_static)
  target_link_libraries(echomq_testing_static PUBLIC echomq_static)
  if(NOT PROJECT_IS_TOP_LEVEL)
    set_target_properties(echomq_testing echomq_testing_objects PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endif()

# Apart, for it alone needs SQLite.
if(ECHOMQ_BUILD_JOURNAL)
  echomq_add_objects(echomq_journal_objects ${ECHOMQ_JOURNAL_SOURCES})
  target_link_libraries(echomq_journal_objects PRIVATE SQLite::SQLite3)
  echomq_add_shared(echomq_journal echomq_journal_objects journal)
  target_link_libraries(echomq_journal PUBLIC echomq PRIVATE $<BUILD_INTERFACE:SQLite::SQLite3>)
  echomq_add_static(echomq_journal_static echomq_journal_objects journal_static)
  target_link_libraries(echomq_journal_static PUBLIC echomq_static PRIVATE SQLite::SQLite3)
endif()

# echomq_add_program(<target> [<source>...]): an executable of this repository, linked with the static library.
function(echomq_add_program target)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE echomq_warnings echomq_inside echomq_static)
  if(TARGET echomq_testing_static)
    target_link_libraries(${target} PRIVATE echomq_testing_static)
  endif()
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()
