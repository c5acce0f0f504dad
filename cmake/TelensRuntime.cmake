# Links our shared objects with the shared libstdc++, even if the compiler would link the static
# one.
#
# Some compilers are set up to link libstdc++ statically. LibTorch's libraries bring the shared one
# into the same process, and each of ours would then bring its own: symbols of one are bound to
# another's, and a locale or a stream that one made is taken apart by the other.

# telens_share_cxx_library(<target>): has what links to the target link the shared libstdc++, if
# the compiler would not by itself.
function(telens_share_cxx_library target)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" OR NOT CMAKE_READELF)
    return()
  endif()
  if(NOT DEFINED TELENS_LINKS_STATIC_CXX)
    _telens_links_static_cxx(is_static)
    set(TELENS_LINKS_STATIC_CXX "${is_static}" CACHE INTERNAL "The compiler links libstdc++ statically")
  endif()
  if(NOT TELENS_LINKS_STATIC_CXX)
    return()
  endif()
  # The compiler's own, which has all that its headers use, before one of the system.
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so.6
    OUTPUT_VARIABLE own
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  cmake_path(GET own PARENT_PATH own_folder)
  find_library(TELENS_CXX_LIBRARY NAMES libstdc++.so.6 HINTS ${own_folder} NO_CMAKE_FIND_ROOT_PATH)
  if(NOT TELENS_CXX_LIBRARY)
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} links libstdc++ statically, and LibTorch brings the shared "
                        "one: both in one process corrupt memory. There is no libstdc++.so.6 to link in its "
                        "place; name it with -DTELENS_CXX_LIBRARY=FILE, or take another compiler.")
  endif()
  message(STATUS "The compiler links libstdc++ statically; linking ${TELENS_CXX_LIBRARY}")
  # Before what the compiler adds by itself, of which nothing is needed then.
  target_link_libraries(${target} INTERFACE "$<BUILD_INTERFACE:${TELENS_CXX_LIBRARY}>")
endfunction()

# Links a shared object that throws and prints, and looks at what it needs.
function(_telens_links_static_cxx result)
  set(folder "${CMAKE_BINARY_DIR}/CMakeFiles/telens_runtime")
  file(WRITE "${folder}/probe.cpp" "#include <iostream>\nvoid probe() { std::cout << 1 << std::endl; }\n")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS}")
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} ${flags} -fPIC -shared -o "${folder}/probe.so" "${folder}/probe.cpp"
    RESULT_VARIABLE failed
    OUTPUT_QUIET ERROR_QUIET)
  execute_process(
    COMMAND ${CMAKE_READELF} -d "${folder}/probe.so"
    OUTPUT_VARIABLE needed
    ERROR_QUIET)
  if(failed)
    message(STATUS "${CMAKE_CXX_COMPILER} links no probe: which libstdc++ it takes is unknown")
  endif()
  # libc++ is another library, which is not ours to choose.
  if(failed OR needed MATCHES "NEEDED.*lib(std)?c\\+\\+")
    set(${result} FALSE PARENT_SCOPE)
  else()
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()
