# Two interface targets: `echomq_build_flags` (sanitizers, coverage: everything that runs in one process must agree) and
# `echomq_warnings` (our own files only).
add_library(echomq_build_flags INTERFACE)
add_library(echomq_warnings INTERFACE)

# echomq_precompile(<target> <header>...): in a sanitized tree these headers are compiled once for the whole target. The
# other trees compile each file by itself, so that none comes to count on what another includes.
function(echomq_precompile target)
  if(ECHOMQ_SANITIZE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    # Without a time inside, ccache can tell that a header is the same.
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
endfunction()

# echomq_unite(<target> <source> <group> [TEST]): with ECHOMQ_UNITY the sources of a group are compiled as one file, so names that
# only one file means to see must differ within a group. What a file includes by itself the other trees check.
function(echomq_unite target source group)
  if(ECHOMQ_UNITY STREQUAL "TESTS" AND NOT "TEST" IN_LIST ARGN)
    return()
  endif()
  if(ECHOMQ_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${group})
  endif()
endfunction()

if(ECHOMQ_SANITIZE)
  target_compile_options(echomq_build_flags INTERFACE -fsanitize=${ECHOMQ_SANITIZE} -fno-omit-frame-pointer
                                                      -fno-sanitize-recover=all -g1
                                                      # -O1 takes more than twice as long to compile, and the tests, which
                                                      # mostly wait, no less to run. Fuzzers do nothing but run, and
                                                      # targets with the property ECHOMQ_OPTIMIZED run for long too.
                                                      $<IF:$<OR:$<BOOL:${ECHOMQ_BUILD_FUZZERS}>,$<BOOL:$<TARGET_PROPERTY:ECHOMQ_OPTIMIZED>>>,-O1,-O0>)
  target_link_options(echomq_build_flags INTERFACE -fsanitize=${ECHOMQ_SANITIZE})
endif()
if(ECHOMQ_BUILD_FUZZERS)
  target_compile_options(echomq_build_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(echomq_build_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(ECHOMQ_COVERAGE)
  target_compile_options(echomq_build_flags INTERFACE --coverage)
  target_link_options(echomq_build_flags INTERFACE --coverage)
endif()
foreach(library echomq_boost_asio echomq_boost_json)
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:echomq_build_flags>)
endforeach()

target_compile_options(
  echomq_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wconversion
            -Wno-sign-conversion
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wcast-align
            -Wundef
            # Options structs are written with designated initialisers that name only what differs from the default.
            -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(
    echomq_warnings
    INTERFACE # False positives of g++ 12 on std::expected and std::optional once they are inlined (GCC bug 105562).
              -Wno-maybe-uninitialized
              # False positives of g++ 12 on `"literal" + std::string` (GCC bugs 105329 and 105651).
              -Wno-restrict)
  if(ECHOMQ_UNITY AND NOT ECHOMQ_UNITY STREQUAL "TESTS")
    # It takes sources that are compiled as one for headers, which others might include too.
    target_compile_options(echomq_warnings INTERFACE -Wno-subobject-linkage)
  endif()
endif()
if(ECHOMQ_WARNINGS_AS_ERRORS)
  target_compile_options(echomq_warnings INTERFACE -Werror)
endif()
