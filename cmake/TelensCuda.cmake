# The CUDA backend: whether it is built, for which GPUs, and with which compiler flags.
#
# TELENS_CUDA   OFF: only the CPU. ON: CUDA is required. AUTO: CUDA if there is an nvcc and the
#               LibTorch found has CUDA. CMake's other words for ON and OFF mean the same.
set(TELENS_CUDA OFF CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE TELENS_CUDA PROPERTY STRINGS AUTO ON OFF)

# Machine code for Ampere and Ada (80), Hopper (90a) and the Blackwell family of data-center cards
# (100f). 90-virtual: PTX, which the driver compiles at start for any newer card.
set(TELENS_CUDA_TARGETS "80;90a;100f;90-virtual" CACHE STRING
    "GPU targets: compute capabilities, with -virtual for PTX")

# Line tables do not change the code. Compressed as nvcc does by default, they take twice the space
# of the code.
option(TELENS_CUDA_LINES "Let profilers and compute-sanitizer name source lines of kernels" ON)

# telens_enable_cuda(): decides, and with CUDA enables the language. Sets TELENS_WITH_CUDA.
macro(telens_enable_cuda)
  set(TELENS_WITH_CUDA FALSE)
  string(TOUPPER "${TELENS_CUDA}" _telens_cuda)
  if(NOT _telens_cuda MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|1|0)$")
    message(FATAL_ERROR "TELENS_CUDA=${TELENS_CUDA}; expected AUTO, ON or OFF")
  endif()
  if(TELENS_TORCH AND (_telens_cuda STREQUAL "AUTO" OR TELENS_CUDA))
    find_program(TELENS_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(TELENS_NVCC AND LIBTORCH_CUDA_LIBRARY)
      set(TELENS_WITH_CUDA TRUE)
    elseif(NOT _telens_cuda STREQUAL "AUTO")
      message(FATAL_ERROR
        "TELENS_CUDA=${TELENS_CUDA} needs an nvcc (found: ${TELENS_NVCC}) and a torch built with "
        "CUDA (found: ${LIBTORCH_CUDA_LIBRARY}); install the CUDA toolkit and a CUDA build of "
        "torch, or pass -DTELENS_CUDA=OFF (make build CUDA=OFF)")
    endif()
  endif()
  if(TELENS_WITH_CUDA)
    set(CMAKE_CUDA_COMPILER "${TELENS_NVCC}" CACHE FILEPATH "The CUDA compiler")
    # Targets go to nvcc as they are: this CMake may be older than some of their names.
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    # CCACHE_COMPILER is g++, which ccache would call in place of nvcc.
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    list(FILTER CMAKE_CUDA_COMPILER_LAUNCHER EXCLUDE REGEX "^CCACHE_COMPILER=")
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know C++20 of nvcc 13
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    # No static CUDA runtime, because core/kernels/cuda links the shared one of LibTorch.
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    find_package(CUDAToolkit REQUIRED)
    telens_cuda_flags()
  endif()
  message(STATUS "CUDA backend: ${TELENS_WITH_CUDA} (TELENS_CUDA=${TELENS_CUDA})")
endmacro()

# telens_cuda_options: the options with which all of our .cu files are compiled.
function(telens_cuda_flags)
  add_library(telens_cuda_options INTERFACE)
  foreach(_target IN LISTS TELENS_CUDA_TARGETS)
    if(_target MATCHES "^(.+)-virtual$")
      set(_code "compute_${CMAKE_MATCH_1}")
      set(_architecture "${CMAKE_MATCH_1}")
    else()
      set(_code "sm_${_target}")
      set(_architecture "${_target}")
    endif()
    list(APPEND _flags "--generate-code=arch=compute_${_architecture},code=${_code}")
  endforeach()
  target_compile_options(
    telens_cuda_options
    INTERFACE
      ${_flags}
      # Bits must agree between devices: no fused multiply-add unasked, IEEE division and roots, no
      # flushing of subnormals (the last three are nvcc's defaults).
      --fmad=false
      $<$<BOOL:${TELENS_CUDA_LINES}>:-lineinfo>
      # With lines a third of what the default takes without them. Drivers know it since CUDA 12.4,
      # older ones may run programs of CUDA 12.
      $<$<VERSION_GREATER_EQUAL:${CMAKE_CUDA_COMPILER_VERSION},13>:--compress-mode=size>
      # std::numeric_limits and the constexpr functions of core/formats in device code.
      --expt-relaxed-constexpr
      -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off
      $<$<BOOL:${TELENS_WERROR}>:-Werror=all-warnings>
      $<$<BOOL:${TELENS_WERROR}>:-Xcompiler=-Werror>)
  target_include_directories(telens_cuda_options INTERFACE "${PROJECT_SOURCE_DIR}")
endfunction()
