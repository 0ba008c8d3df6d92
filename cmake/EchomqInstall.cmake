# `find_package(echomq)` gives echomq::echomq, echomq::testing and, where it was built, echomq::journal.
include(CMakePackageConfigHelpers)
option(ECHOMQ_INSTALL "Make install targets" ${PROJECT_IS_TOP_LEVEL})
if(NOT ECHOMQ_INSTALL)
  return()
endif()

set(ECHOMQ_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/echomq")
set(echomq_installed echomq)
if(TARGET echomq_testing)
  list(APPEND echomq_installed echomq_testing)
endif()
if(TARGET echomq_journal)
  list(APPEND echomq_installed echomq_journal)
endif()
install(TARGETS ${echomq_installed} EXPORT echomqTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/echomq" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.hpp")
install(EXPORT echomqTargets NAMESPACE echomq:: DESTINATION "${ECHOMQ_CMAKE_DIR}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/packaging/echomqConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/generated/echomqConfig.cmake" INSTALL_DESTINATION "${ECHOMQ_CMAKE_DIR}")
# Before 1.0 a minor version may break; from 1.0 on only a major one.
set(echomq_compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(echomq_compatibility SameMinorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/echomqConfigVersion.cmake"
                                 COMPATIBILITY ${echomq_compatibility})
install(FILES "${PROJECT_BINARY_DIR}/generated/echomqConfig.cmake"
              "${PROJECT_BINARY_DIR}/generated/echomqConfigVersion.cmake" DESTINATION "${ECHOMQ_CMAKE_DIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
