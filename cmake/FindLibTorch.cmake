# LibTorch from the torch wheel of a Python interpreter, without the wheel's own TorchConfig.cmake,
# which insists on a CUDA toolkit (and fails with CUDA 13 under CMake 3.25).
#
# Input:   TELENS_TORCH_PYTHON (a Python that has torch) or LIBTORCH_ROOT (the folder `torch`).
# Output:  LibTorch::torch (CPU libraries and headers), LibTorch::python (libtorch_python),
#          LibTorch::cuda (libtorch_cuda, libc10_cuda; where torch was built with CUDA),
#          LIBTORCH_ROOT, LIBTORCH_VERSION, LIBTORCH_CUDA_LIBRARY.
if(NOT LIBTORCH_ROOT)
  if(NOT TELENS_TORCH_PYTHON)
    if(SKBUILD)  # pip installs for the Python that runs it
      set(TELENS_TORCH_PYTHON "${Python_EXECUTABLE}")
    elseif(EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
      set(TELENS_TORCH_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    else()
      find_program(TELENS_TORCH_PYTHON NAMES python3 python)
    endif()
  endif()
  # find_spec locates torch without the two seconds that importing it takes.
  execute_process(
    COMMAND "${TELENS_TORCH_PYTHON}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE _libtorch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE _libtorch_result)
  if(_libtorch_result EQUAL 0)
    set(LIBTORCH_ROOT "${_libtorch_root}" CACHE PATH "The folder of the installed torch package")
  endif()
endif()
if(LIBTORCH_ROOT AND EXISTS "${LIBTORCH_ROOT}/version.py")
  file(STRINGS "${LIBTORCH_ROOT}/version.py" _libtorch_version REGEX "^__version__ *=")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LIBTORCH_VERSION "${_libtorch_version}")
endif()

find_library(LIBTORCH_CPU_LIBRARY torch_cpu PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_LIBRARY c10 PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_CUDA_LIBRARY torch_cuda PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_CUDA_LIBRARY c10_cuda PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_PYTHON_LIBRARY torch_python PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
# at::parallel_for is OpenMP inside its caller (serial without -fopenmp), and the caller must use the
# runtime that libtorch_cpu uses: a second one would bring a second pool of threads.
file(GLOB LIBTORCH_OPENMP_LIBRARY "${LIBTORCH_ROOT}/lib/libgomp*.so*"
     "${LIBTORCH_ROOT}/../torch.libs/libgomp*.so*")

set(_libtorch_wanted "torch >= ${LibTorch_FIND_VERSION}")
set(_libtorch_cause "no torch package found with ${TELENS_TORCH_PYTHON}")
if(LIBTORCH_VERSION)
  set(_libtorch_cause "${LIBTORCH_ROOT} is torch ${LIBTORCH_VERSION}, expected ${_libtorch_wanted}")
endif()
set(_libtorch_mend "pass")
if(EXISTS "${PROJECT_SOURCE_DIR}/cmake/setup/setup.sh")  # our own build, and no user's of the package
  set(_libtorch_mend "run `make setup` or pass")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_ROOT
  VERSION_VAR LIBTORCH_VERSION
  REASON_FAILURE_MESSAGE
    "${_libtorch_cause} - ${_libtorch_mend} -DTELENS_TORCH_PYTHON=<a python with ${_libtorch_wanted}>")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LIBTORCH_C10_LIBRARY}")
  add_library(LibTorch::torch SHARED IMPORTED)
  set_target_properties(
    LibTorch::torch PROPERTIES
    IMPORTED_LOCATION "${LIBTORCH_CPU_LIBRARY}"
    INTERFACE_LINK_LIBRARIES "LibTorch::c10;${LIBTORCH_OPENMP_LIBRARY}"
    INTERFACE_COMPILE_OPTIONS -fopenmp)
  # SYSTEM: LibTorch's headers are not ours to warn about.
  target_include_directories(
    LibTorch::torch SYSTEM INTERFACE "${LIBTORCH_ROOT}/include"
                                     "${LIBTORCH_ROOT}/include/torch/csrc/api/include")
  # The wheels are built with the C++11 ABI, c10d with gloo.
  target_compile_definitions(LibTorch::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED
                                                       USE_C10D_GLOO)
  if(LIBTORCH_CUDA_LIBRARY)
    add_library(LibTorch::c10_cuda SHARED IMPORTED)
    set_target_properties(LibTorch::c10_cuda PROPERTIES IMPORTED_LOCATION
                                                        "${LIBTORCH_C10_CUDA_LIBRARY}")
    add_library(LibTorch::cuda SHARED IMPORTED)
    set_target_properties(
      LibTorch::cuda PROPERTIES
      IMPORTED_LOCATION "${LIBTORCH_CUDA_LIBRARY}"
      INTERFACE_LINK_LIBRARIES "LibTorch::torch;LibTorch::c10_cuda")
  endif()
  if(LIBTORCH_PYTHON_LIBRARY)
    add_library(LibTorch::python SHARED IMPORTED)
    set_target_properties(
      LibTorch::python PROPERTIES
      IMPORTED_LOCATION "${LIBTORCH_PYTHON_LIBRARY}"
      INTERFACE_LINK_LIBRARIES LibTorch::torch)
  endif()
endif()
