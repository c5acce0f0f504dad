# Compiler settings, and the functions with which every folder declares its targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Kernels ask for -O3 themselves; everything else would compile longer and run no faster.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

option(TELENS_WERROR "Treat warnings in our own code as errors" ON)
option(TELENS_PRECOMPILED_HEADERS "Precompile LibTorch's, GoogleTest's and the standard headers" ON)
option(TELENS_UNITY "Compile the sources of a folder several at a time: faster as a whole, not one by one" ON)
# Relative paths: CMake writes them into the file that is compiled. With absolute paths, ccache
# would compile that file again in each clone.
set(TELENS_STANDARD_HEADERS "<cmake/standard_headers.h$<ANGLE-R>")
set(TELENS_TORCH_HEADERS "<core/precompiled.h$<ANGLE-R>")
set(TELENS_TENSOR_HEADERS "<core/precompiled_tensor.h$<ANGLE-R>")
set(TELENS_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, for example address,undefined")

find_program(TELENS_CCACHE ccache)
if(TELENS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # `make` (build/) and `pip install .` (build-wheel/) share their results:
  # - CCACHE_SLOPPINESS: ccache requires pch_defines and time_macros to cache users of a precompiled
  #   header;
  # - CCACHE_BASEDIR: paths are relative in the hash;
  # - CCACHE_IGNOREOPTIONS: the wheel is built without -Werror. A cached warning is printed again;
  # - CCACHE_COMPILER: Debian's Python has CMake call g++ by its long name. GCC only: Clang's compilers
  #   of several languages are one program, which looks at its name.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_IGNOREOPTIONS=-Werror)
  file(REAL_PATH "${CMAKE_CXX_COMPILER}" _compiler)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND _compiler MATCHES "g\\+\\+[^/]*$")
    list(APPEND CMAKE_CXX_COMPILER_LAUNCHER CCACHE_COMPILER=${_compiler})
  endif()
  list(APPEND CMAKE_CXX_COMPILER_LAUNCHER ${TELENS_CCACHE})
endif()

# The options with which all of our own code is compiled.
add_library(telens_options INTERFACE)
target_include_directories(telens_options INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
                                                    "$<INSTALL_INTERFACE:include/telens>")
target_compile_features(telens_options INTERFACE cxx_std_20)
target_compile_options(
  telens_options INTERFACE
  # -ffile-prefix-map: messages and debug information contain no absolute path, so ccache finds an
  # object in each clone.
  $<BUILD_INTERFACE:-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.>
  # -ffp-contract=off: bits must agree between devices, so no compiler may fuse a*b+c unasked.
  $<BUILD_INTERFACE:-Wall;-Wextra;-Wpedantic;-Wno-unused-parameter;-ffp-contract=off;-Winvalid-pch>
  # GCC's garbage collector would walk through the precompiled headers again and again, which takes
  # a sixth of a compilation with LibTorch. So it begins at a gigabyte.
  $<BUILD_INTERFACE:$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>>
  $<BUILD_INTERFACE:$<$<BOOL:${TELENS_WERROR}>:-Werror>>)
if(TELENS_SANITIZE)
  # GCC's -Wmaybe-uninitialized takes instrumented code for uninitialized reads.
  target_compile_options(
    telens_options
    INTERFACE
      $<BUILD_INTERFACE:-fsanitize=${TELENS_SANITIZE};-fno-sanitize-recover=undefined;-fno-omit-frame-pointer;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>>)
  target_link_options(telens_options INTERFACE $<BUILD_INTERFACE:-fsanitize=${TELENS_SANITIZE}>)
endif()

include(TelensRuntime)
telens_share_cxx_library(telens_options)

include(TelensSources)

# The packages that libtelens.so's sources use in addition to LibTorch.
set(TELENS_LIBRARY_PACKAGES fmt::fmt PkgConfig::HWY yaml-cpp::yaml-cpp PkgConfig::PCRE2 TelensHdf5)

# telens_objects(<target>): adds an object library to libtelens.so and gives it the options and macros
# of libtelens.so.
function(telens_objects target)
  target_link_libraries(${target} PRIVATE telens_options LibTorch::torch ${TELENS_LIBRARY_PACKAGES})
  target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:telens,COMPILE_DEFINITIONS>
                                               AT_PER_OPERATOR_HEADERS)
  target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:telens,COMPILE_OPTIONS>)
  target_sources(telens PRIVATE $<TARGET_OBJECTS:${target}>)
  set_property(GLOBAL APPEND PROPERTY telens_object_libraries ${target})
endfunction()

# telens_use_precompiled_headers(<executable> [<library>] [TEST]): lets an executable that links the
# library, telens or telens_base, take its headers precompiled, and GoogleTest's if it is a test; once
# for all programs of a kind.
function(telens_use_precompiled_headers name)
  cmake_parse_arguments(arg "TEST" "" "" ${ARGN})
  if(NOT TELENS_PRECOMPILED_HEADERS)
    return()
  endif()
  set(library "${arg_UNPARSED_ARGUMENTS}")
  if(NOT library)
    set(library telens)
  endif()
  set(holder ${library}_program_headers)
  if(arg_TEST)
    set(holder ${library}_test_headers)
  endif()
  if(NOT TARGET ${holder})
    set(headers_telens "${TELENS_TORCH_HEADERS}")
    set(headers_telens_base "${TELENS_STANDARD_HEADERS}")
    add_library(${holder} OBJECT "${PROJECT_SOURCE_DIR}/cmake/empty.cpp")
    target_link_libraries(${holder} PRIVATE ${library} $<$<BOOL:${arg_TEST}>:GTest::gmock>)
    target_precompile_headers(${holder} PRIVATE "${headers_${library}}"
                              $<$<BOOL:${arg_TEST}>:<gmock/gmock.h$<ANGLE-R>>
                              $<$<BOOL:${arg_TEST}>:<gtest/gtest.h$<ANGLE-R>>)
    set_target_properties(${holder} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  endif()
  # GCC takes a precompiled header only under the same -fPIC and -fPIE; executables of one kind have
  # neither (Debian's GCC makes them position-independent by itself).
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_precompile_headers(${name} REUSE_FROM ${holder})
endfunction()

# telens_test(<name> SOURCES <file>... [LIBRARIES <target>...] [PROPERTIES <property> <value>...]
# [THREADS quick|slow]): a GoogleTest program, with properties of its test in CTest. A test of
# libtelens.so is left out of a build without LibTorch. THREADS: `make tsan` runs it, `make tsan-quick`
# where it is quick; it has the label threads_quick or threads_slow.
function(telens_test name)
  cmake_parse_arguments(arg "" "THREADS" "SOURCES;LIBRARIES;PROPERTIES" ${ARGN})
  if("telens" IN_LIST arg_LIBRARIES AND NOT TARGET telens)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  list(LENGTH arg_SOURCES _sources)
  if(_sources GREATER 1)
    telens_unite(${name} ${arg_SOURCES})
  endif()
  target_link_libraries(${name} PRIVATE telens_options ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  # The library under test is optimized with -O2; tests with -O1 compile faster.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if("telens" IN_LIST arg_LIBRARIES)
    telens_use_precompiled_headers(${name} telens TEST)
  elseif("telens_base" IN_LIST arg_LIBRARIES)
    telens_use_precompiled_headers(${name} telens_base TEST)
  endif()
  if(arg_THREADS)
    set(_threads threads_${arg_THREADS})
    list(APPEND arg_PROPERTIES LABELS ${_threads})
    if(NOT TARGET ${_threads})
      add_custom_target(${_threads})
    endif()
    add_dependencies(${_threads} ${name})
  endif()
  telens_add_test(${name} ${arg_PROPERTIES})
endfunction()

# telens_add_test(<name> [<property> <value>]...): CTest runs the GoogleTest program as a whole. A process
# for each case takes four times as long, as each maps the hundreds of megabytes of LibTorch again.
function(telens_add_test name)
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 ${ARGN})
endfunction()
