# Install rules, the same for `cmake --install` and for the wheel, whose prefix is the package's own
# folder: bin/telens, lib/libtelens.so, include/telens/, lib/cmake/telens/. In the wheel the command
# goes to the scripts of the environment instead. The component `plugin` is what CMake requires to
# build a plugin without LibTorch; packaging/build_wheels.py adds the headers.
include(CMakePackageConfigHelpers)
set(_telens_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/telens")

set_target_properties(telens_options PROPERTIES EXPORT_NAME options)
install(TARGETS telens_options EXPORT telensOptions)
install(EXPORT telensOptions NAMESPACE telens:: DESTINATION "${_telens_cmake_dir}" COMPONENT plugin)

set_target_properties(telens_base PROPERTIES EXPORT_NAME base)
install(TARGETS telens_base EXPORT telensBase ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT telensBase NAMESPACE telens:: DESTINATION "${_telens_cmake_dir}")

set(_telens_header_folders core/base core/formats record hooks/config hooks/statistics analysis
    features)
set(_telens_modules TelensDependencies.cmake)
if(TELENS_TORCH)
  # libtelens.so finds LibTorch where it was built with it; in a wheel, which travels, beside its own
  # package: site-packages/telens/lib and site-packages/torch/lib.
  if(SKBUILD)
    set_target_properties(telens PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
  else()
    set_target_properties(telens PROPERTIES INSTALL_RPATH "${LIBTORCH_ROOT}/lib")
  endif()
  install(TARGETS telens EXPORT telensTorch LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT telensTorch NAMESPACE telens:: DESTINATION "${_telens_cmake_dir}")
  set_target_properties(telens_plugin PROPERTIES EXPORT_NAME plugin)
  install(TARGETS telens_plugin EXPORT telensPlugin)
  install(EXPORT telensPlugin NAMESPACE telens:: DESTINATION "${_telens_cmake_dir}" COMPONENT plugin)
  # The C++ sample says with it what is wrong on its command line.
  set(_telens_header_folders core record hooks analysis features inspector_cli/command_line)
  list(APPEND _telens_modules FindLibTorch.cmake)
endif()

set(_telens_command_dir "${CMAKE_INSTALL_BINDIR}")
if(SKBUILD)
  set(_telens_command_dir "${SKBUILD_SCRIPTS_DIR}")
endif()
install(TARGETS telens_command RUNTIME DESTINATION "${_telens_command_dir}" COMPONENT command)

foreach(_folder IN LISTS _telens_header_folders)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${_folder}/"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/telens/${_folder}"
          FILES_MATCHING PATTERN "*.h" PATTERN "precompiled*.h" EXCLUDE)
endforeach()

# Headers at the paths of the last release, which include those of this one.
file(STRINGS "${PROJECT_SOURCE_DIR}/cmake/ForwardedHeaders.txt" _telens_forwarded REGEX "^[^#]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/ForwardedHeaders.txt)
foreach(_row IN LISTS _telens_forwarded)
  string(REPLACE " " ";" _row "${_row}")
  list(POP_FRONT _row _old)
  list(GET _row 0 _new)
  if(EXISTS "${PROJECT_SOURCE_DIR}/${_old}")
    message(FATAL_ERROR "cmake/ForwardedHeaders.txt: ${_old} would replace the header at this path; "
                        "remove its line")
  endif()
  string(REGEX MATCH "^[^/]+(/[^/]+)?" _folder "${_new}")
  string(REGEX MATCH "^[^/]+" _top "${_new}")
  if(NOT _folder IN_LIST _telens_header_folders AND NOT _top IN_LIST _telens_header_folders)
    continue()  # needs LibTorch, which this build does not have
  endif()
  set(_forwarding "${PROJECT_BINARY_DIR}/forwarded/${_old}")
  list(TRANSFORM _row PREPEND "#include \"")
  list(TRANSFORM _row APPEND "\"\n")
  string(JOIN "" _includes ${_row})
  file(CONFIGURE OUTPUT "${_forwarding}" CONTENT "#pragma once\n${_includes}" @ONLY)
  cmake_path(GET _old PARENT_PATH _folder)
  install(FILES "${_forwarding}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/telens/${_folder}")
endforeach()

# In a folder of their own: find_package() would take the build folder for an installed one.
set(_telens_package "${PROJECT_BINARY_DIR}/package")
configure_package_config_file(cmake/telensConfig.cmake.in "${_telens_package}/telensConfig.cmake"
                              INSTALL_DESTINATION "${_telens_cmake_dir}")
write_basic_package_version_file("${_telens_package}/telensConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
list(TRANSFORM _telens_modules PREPEND "${PROJECT_SOURCE_DIR}/cmake/")
install(FILES ${_telens_modules} "${_telens_package}/telensConfig.cmake"
              "${_telens_package}/telensConfigVersion.cmake"
        DESTINATION "${_telens_cmake_dir}" COMPONENT plugin)
