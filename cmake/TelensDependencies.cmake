# The libraries that TELens needs, for its own build and for find_package(telens), for which this
# file is installed.

# What libtelens_base.a links: fmt, yaml-cpp::yaml-cpp, TelensHdf5, ZLIB::ZLIB,
# PkgConfig::PCRE2.
macro(telens_find_base_dependencies)
  find_package(fmt REQUIRED)
  find_package(yaml-cpp REQUIRED)
  if(NOT TARGET yaml-cpp::yaml-cpp)  # before yaml-cpp 0.8
    add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
  endif()
  # Not CMake's FindHDF5, which wants a C compiler and lists what Debian's compiler wrapper names
  # besides HDF5 (curl, crypto). Debian keeps the serial library apart from the parallel ones.
  find_path(TELENS_HDF5_INCLUDE_DIR hdf5.h REQUIRED PATH_SUFFIXES hdf5/serial)
  # NAMES_PER_DIR: beside the headers that were found, before another one of the system.
  find_library(TELENS_HDF5_LIBRARY NAMES hdf5_serial hdf5 NAMES_PER_DIR REQUIRED)
  if(NOT TARGET TelensHdf5)
    add_library(TelensHdf5 INTERFACE IMPORTED)
    target_link_libraries(TelensHdf5 INTERFACE "${TELENS_HDF5_LIBRARY}")
    target_include_directories(TelensHdf5 SYSTEM INTERFACE "${TELENS_HDF5_INCLUDE_DIR}")
  endif()
  find_package(ZLIB REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
endmacro()

# The libraries whose headers a program that links libtelens.so includes.
macro(telens_find_torch_dependencies)
  find_package(fmt REQUIRED)
  find_package(LibTorch 2.10 REQUIRED)  # pyproject.toml says it too
endmacro()
