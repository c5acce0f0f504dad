# Links the binaries of the wheels (packaging/) with static libraries instead of the system's.
#
# TELENS_WHEEL_LIBRARIES is a prefix with static libraries, built by cmake/portable/build.sh. The
# targets reuse the objects of the ordinary targets, so only one source is compiled twice:
#
#   telens_wheel_command    wheel/telens: does not need any shared library
#   telens_wheel_observe    wheel/libtelens_observe.so: needs libtorch_cpu.so of torch 2.10 or newer, and
#                           the C and C++ libraries
#   telens_wheel_observer   wheel/_observer.so: also needs libtelens_observe.so
#   telens_wheel_library    wheel/libtelens.so: needs LibTorch and the C and C++ libraries
#   telens_wheel_module     wheel/_C.so: also needs libtelens.so
set(TELENS_WHEEL_LIBRARIES "" CACHE PATH "Static libraries for wheels, from cmake/portable/build.sh")
if(NOT TELENS_WHEEL_LIBRARIES)
  return()
endif()

set(_telens_archives)
foreach(_name IN ITEMS yaml-cpp fmt pcre2-8 hdf5 z)
  find_library(TELENS_WHEEL_${_name} NAMES lib${_name}.a PATHS "${TELENS_WHEEL_LIBRARIES}/lib"
               NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  list(APPEND _telens_archives "${TELENS_WHEEL_${_name}}")
endforeach()

# The objects were compiled with the headers that CMake found. The archives must have the same
# version.
file(STRINGS "${TELENS_HDF5_INCLUDE_DIR}/H5public.h" _telens_hdf5 REGEX "H5_VERS_INFO")
file(STRINGS "${TELENS_WHEEL_LIBRARIES}/include/H5public.h" _telens_wheel_hdf5 REGEX "H5_VERS_INFO")
if(NOT _telens_hdf5 STREQUAL _telens_wheel_hdf5)
  message(FATAL_ERROR "${TELENS_HDF5_INCLUDE_DIR}/H5public.h and ${TELENS_WHEEL_LIBRARIES}/include/"
                      "H5public.h have different versions; build the libraries again with "
                      "cmake/portable/build.sh")
endif()

# Debian compiles cpp-httplib into a shared library; the prefix contains it as a header. These objects
# must precede the archive with the ordinary objects.
add_library(telens_wheel_server OBJECT EXCLUDE_FROM_ALL
            "${PROJECT_SOURCE_DIR}/inspector_cli/serve/loopback_server.cpp")
target_include_directories(telens_wheel_server SYSTEM BEFORE PRIVATE "${TELENS_WHEEL_LIBRARIES}/include")
target_link_libraries(telens_wheel_server PRIVATE telens_inspector)

# -static-pie: position-independent, like Debian's programs. The linker warns about getaddrinfo, which
# only parses numeric addresses here, and about dlopen, which no_dlopen.cpp replaces.
add_executable(telens_wheel_command EXCLUDE_FROM_ALL $<TARGET_OBJECTS:telens_command>
                                                     $<TARGET_OBJECTS:telens_wheel_server>
                                                     cmake/portable/no_dlopen.cpp)
set_target_properties(telens_wheel_command PROPERTIES OUTPUT_NAME telens LINKER_LANGUAGE CXX
                      RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/wheel")
target_link_options(telens_wheel_command PRIVATE -static-pie)
target_link_libraries(telens_wheel_command PRIVATE
                      $<TARGET_FILE:telens_cli> $<TARGET_FILE:telens_inspector>
                      $<TARGET_FILE:telens_base> ${_telens_archives})
add_dependencies(telens_wheel_command telens_cli telens_inspector telens_base)

# telens_wheel_library(<target> <name> OBJECTS <objects>... LIBRARIES <library>...): wheel/lib<name>.so,
# which is installed in site-packages/telens/lib. LibTorch is in site-packages/torch/lib.
function(telens_wheel_library target name)
  cmake_parse_arguments(arg "" "" "OBJECTS;LIBRARIES" ${ARGN})
  add_library(${target} SHARED EXCLUDE_FROM_ALL ${arg_OBJECTS})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE CXX
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/wheel"
                        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../../torch/lib")
  target_link_libraries(${target} PRIVATE
                        telens_options ${arg_LIBRARIES}
                        -Wl,--whole-archive $<TARGET_FILE:telens_base> -Wl,--no-whole-archive
                        "${TELENS_WHEEL_LIBRARIES}/lib/libhwy.a" ${_telens_archives} ${CMAKE_DL_LIBS})
  add_dependencies(${target} telens_base)
endfunction()

# telens_wheel_module(<target> <name> <module> <library>...): wheel/<name>.so, a Python module of the
# objects of the target <module>.
function(telens_wheel_module target name module)
  get_target_property(suffix ${module} SUFFIX)
  add_library(${target} MODULE EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${module}>)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} PREFIX "" SUFFIX "${suffix}"
                        LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/wheel"
                        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/lib")
  target_link_libraries(${target} PRIVATE ${ARGN} telens_options)
endfunction()

if(TARGET telens_observer)
  telens_wheel_library(
    telens_wheel_observe telens_observe
    OBJECTS $<TARGET_OBJECTS:telens_observe> $<TARGET_OBJECTS:telens_observe_kernels>
            $<TARGET_OBJECTS:telens_cpu_loops> $<TARGET_OBJECTS:telens_without_libtorch>
    LIBRARIES "${LIBTORCH_CPU_LIBRARY}")
  # Both contain fmt, whose static library hides its symbols.
  telens_wheel_module(telens_wheel_observer _observer telens_observer telens_wheel_observe
                      "${LIBTORCH_CPU_LIBRARY}" "${TELENS_WHEEL_fmt}")
endif()

if(TELENS_PYTHON AND NOT TELENS_WITH_CUDA)
  get_property(_telens_objects GLOBAL PROPERTY telens_object_libraries)
  list(TRANSFORM _telens_objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  telens_wheel_library(telens_wheel_library telens OBJECTS $<TARGET_OBJECTS:telens> ${_telens_objects}
                       LIBRARIES LibTorch::torch)
  telens_wheel_module(telens_wheel_module _C telens_python telens_wheel_library LibTorch::python)
endif()
