# What the library itself is built from. Nothing of it shows in the public headers or in the exported symbols, so a
# program that uses an installed EchoMQ needs none of these packages.
find_package(Threads REQUIRED)
find_package(Boost 1.83 REQUIRED)
find_package(OpenSSL 3 REQUIRED)
find_package(fmt 9 REQUIRED)
# Debian's libzstd has no CMake package of its own, only pkg-config: looked up by hand, for a tree that is built without it.
find_path(ECHOMQ_ZSTD_INCLUDE zstd.h REQUIRED)
find_library(ECHOMQ_ZSTD_LIBRARY zstd REQUIRED)
add_library(echomq_zstd INTERFACE)
target_include_directories(echomq_zstd SYSTEM INTERFACE "${ECHOMQ_ZSTD_INCLUDE}")
target_link_libraries(echomq_zstd INTERFACE "${ECHOMQ_ZSTD_LIBRARY}")
if(ECHOMQ_BUILD_JOURNAL)
  find_package(SQLite3 3.37 REQUIRED)
endif()

# Asio and Boost.JSON are compiled once, here, instead of in every file that includes them. Both are archives, so that a
# binary which uses neither carries neither.
file(CONFIGURE OUTPUT generated/boost_asio.cpp @ONLY
     CONTENT "#include <boost/asio/impl/src.hpp>\n#include <boost/asio/ssl/impl/src.hpp>\n")
file(CONFIGURE OUTPUT generated/boost_json.cpp @ONLY CONTENT "#include <boost/json/src.hpp>\n")

add_library(echomq_boost_asio STATIC EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/generated/boost_asio.cpp")
target_compile_definitions(echomq_boost_asio PUBLIC BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(echomq_boost_asio PUBLIC Boost::headers OpenSSL::SSL Threads::Threads)

add_library(echomq_boost_json STATIC EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/generated/boost_json.cpp")
target_link_libraries(echomq_boost_json PUBLIC Boost::headers)

foreach(library echomq_boost_asio echomq_boost_json)
  target_compile_features(${library} PUBLIC cxx_std_23)
  set_target_properties(${library} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                              VISIBILITY_INLINES_HIDDEN ON CXX_CLANG_TIDY "")
endforeach()
