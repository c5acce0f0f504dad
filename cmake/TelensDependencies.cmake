# The libraries that TELens stands on: for its own build, and for find_package(telens), which this
# file is installed for.

# What libtelens_base.a links: fmt, yaml-cpp::yaml-cpp, TelensHdf5, PkgConfig::PCRE2.
macro(telens_find_base_dependencies)
  find_package(fmt REQUIRED)
  find_package(yaml-cpp REQUIRED)
  if(NOT TARGET yaml-cpp::yaml-cpp)  # before yaml-cpp 0.8
    add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
  endif()
  find_package(HDF5 REQUIRED COMPONENTS C)
  # HDF5's own library alone: FindHDF5 also lists curl and crypto, which Debian's compiler wrapper names.
  find_library(TELENS_HDF5_LIBRARY NAMES hdf5_serial hdf5 REQUIRED HINTS ${HDF5_C_LIBRARY_DIRS})
  if(NOT TARGET TelensHdf5)
    add_library(TelensHdf5 INTERFACE IMPORTED)
    target_link_libraries(TelensHdf5 INTERFACE "${TELENS_HDF5_LIBRARY}")
    target_include_directories(TelensHdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
  endif()
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
endmacro()

# What a program that links libtelens.so sees.
macro(telens_find_torch_dependencies)
  find_package(fmt REQUIRED)
  find_package(LibTorch REQUIRED)
endmacro()
