# Every public header compiles alone, and twice in one file: target `header_check`, and a test of that name.
file(GLOB_RECURSE ECHOMQ_PUBLIC_HEADERS CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
     "${PROJECT_SOURCE_DIR}/include/echomq/*.hpp")
set(echomq_header_files)
foreach(header IN LISTS ECHOMQ_PUBLIC_HEADERS)
  string(MAKE_C_IDENTIFIER "${header}" name)
  set(file "${PROJECT_BINARY_DIR}/generated/headers/${name}.cpp")
  file(CONFIGURE OUTPUT "${file}" CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
  list(APPEND echomq_header_files "${file}")
endforeach()
add_library(header_check OBJECT EXCLUDE_FROM_ALL ${echomq_header_files})
target_compile_features(header_check PRIVATE cxx_std_23)
target_include_directories(header_check PRIVATE "${PROJECT_SOURCE_DIR}/include")
# Only the bridges of echomq/with/ may need more than the standard library.
target_link_libraries(header_check PRIVATE echomq_warnings)
set_target_properties(header_check PROPERTIES CXX_EXTENSIONS OFF)

add_test(NAME header_check COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target header_check)
cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
set_tests_properties(header_check PROPERTIES LABELS fast TIMEOUT 900 PROCESSORS ${processors})
