# An overlay port, taken from the folder of the sources that it stands in: vcpkg install hvd --overlay-ports=packaging/vcpkg/ports
# The port of a registry has vcpkg_from_github(... REF "v${VERSION}" ...) here instead.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

# hvd consists of headers, so that nothing is compiled. The files for CMake are those of CMakeLists.txt, which takes the sources.
set(VCPKG_BUILD_TYPE release)
file(INSTALL "${SOURCE_PATH}/include/hvd" DESTINATION "${CURRENT_PACKAGES_DIR}/include")
file(INSTALL "${SOURCE_PATH}/cmake/hvdTargets.cmake" DESTINATION "${CURRENT_PACKAGES_DIR}/share/hvd")

if("mpi" IN_LIST FEATURES)
  set(HVD_PORT_WITH_MPI ON)
else()
  set(HVD_PORT_WITH_MPI OFF)
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/hvdConfig.cmake.in" "${CURRENT_PACKAGES_DIR}/share/hvd/hvdConfig.cmake" @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${CURRENT_PACKAGES_DIR}/share/hvd/hvdConfigVersion.cmake"
  VERSION "${VERSION}" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)

file(INSTALL "${SOURCE_PATH}/LICENSE" DESTINATION "${CURRENT_PACKAGES_DIR}/share/hvd" RENAME copyright)
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/hvd")
