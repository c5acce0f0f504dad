# libtelens_observe.so and telens/_observer: debug sessions over models without our FP8 modules, on
# LibTorch's stable ABI. One binary runs under every torch from 2.10 on.
#
# libtelens.so has the same sources. Here they are compiled against core/stable_abi/tensor.h instead
# of ATen: a generated header that includes ours replaces each LibTorch header that they include.
# Both libraries contain the objects that do not depend on LibTorch.

# The oldest torch, as torch/csrc/stable/version.h encodes it.
set(TELENS_STABLE_TORCH 0x020a000000000000)

set(_observed_sources
    core/distributed/warn_once.cpp
    core/hook_points.cpp
    core/ops/attention.cpp
    core/ops/block_errors.cpp
    core/ops/block_quantize.cpp
    core/ops/checks.cpp
    core/ops/collective_sums.cpp
    core/ops/histogram.cpp
    core/ops/quantize.cpp
    core/ops/scaling.cpp
    core/ops/statistics.cpp
    core/ops/tensor_digest.cpp
    core/quantization/block_scaling.cpp
    core/quantization/current_scaling.cpp
    core/quantization/delayed_scaling.cpp
    core/quantization/quantized_tensor.cpp
    core/quantization/quantizer.cpp
    core/quantization/recipe.cpp
    core/stable_abi/device.cpp
    core/stable_abi/operators.cpp
    core/stable_abi/tensor.cpp
    core/stable_abi/torch_compat.cpp
    features/fake_quant/fake_quant.cpp
    features/per_tensor_scaling/per_tensor_scaling.cpp
    hooks/libtorch/block_quantizers.cpp
    hooks/libtorch/feature.cpp
    hooks/libtorch/hook_adapter.cpp
    hooks/libtorch/observation.cpp
    hooks/libtorch/tensor_ops.cpp
    hooks/stable_abi/process_group.cpp
    hooks/stable_abi/streams.cpp
    hooks/stable_abi/thread_modes.cpp)
set(_observed_kernels
    core/kernels/cpu/quantize/block_quantize.cpp
    core/kernels/cpu/quantize/hadamard.cpp
    core/kernels/cpu/quantize/nvfp4_quantize.cpp
    core/kernels/cpu/quantize/quantize.cpp
    core/kernels/cpu/quantize/scaling.cpp
    core/kernels/cpu/statistics/block_errors.cpp
    core/kernels/cpu/statistics/histogram.cpp
    core/kernels/cpu/statistics/statistics.cpp
    core/kernels/cpu/statistics/statistics_what_if.cpp)

# ---- headers

set(_observer "${PROJECT_BINARY_DIR}/observer")
# torch/csrc/stable, torch/csrc/inductor/aoti_torch and torch/headeronly, without the other packages
# in torch's include folder.
file(MAKE_DIRECTORY "${_observer}/torch_headers" "${_observer}/headers")
file(CREATE_LINK "${LIBTORCH_ROOT}/include/torch" "${_observer}/torch_headers/torch" SYMBOLIC)

# telens_replace_headers(<folder>...): generates a replacement of each LibTorch header that the
# sources in the folders include.
function(telens_replace_headers)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE folders)
  list(TRANSFORM folders APPEND "/*.h" OUTPUT_VARIABLE headers)
  list(TRANSFORM folders APPEND "/*.cpp" OUTPUT_VARIABLE sources)
  file(GLOB_RECURSE files ${headers} ${sources})
  set(seen)
  foreach(file IN LISTS files)
    file(STRINGS "${file}" includes REGEX "^# *include <(ATen|c10|torch)/")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE ".*<([^>]*)>.*" "\\1" header "${include}")
      if(NOT header MATCHES "^torch/(csrc/(stable|inductor)|headeronly)/")
        list(APPEND seen "${header}")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES seen)
  foreach(header IN LISTS seen)
    if(header MATCHES "^torch/csrc/(utils/pybind|autograd/python_variable)\\.h$")
      set(ours python/bindings/stable_abi.h)
    elseif(header STREQUAL "torch/library.h")
      set(ours core/stable_abi/operators.h)
    else()
      set(ours core/stable_abi/tensor.h)
    endif()
    file(CONFIGURE OUTPUT "${_observer}/headers/${header}"
         CONTENT "#pragma once\n#include \"${ours}\"\n")
  endforeach()
endfunction()
telens_replace_headers(core features hooks python/bindings)

# telens_observes(<target>): compiles the target against these headers.
function(telens_observes target)
  target_link_libraries(${target} PRIVATE telens_options ${TELENS_LIBRARY_PACKAGES})
  target_include_directories(${target} PRIVATE "${_observer}/headers")
  target_include_directories(${target} SYSTEM PRIVATE "${_observer}/torch_headers")
  target_compile_definitions(${target} PRIVATE TELENS_STABLE_ABI FMT_SHARED
                                               TORCH_TARGET_VERSION=${TELENS_STABLE_TORCH})
  # GCC warns that our visible Tensor contains torch::stable::Tensor, which PyTorch hides.
  target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:telens,COMPILE_OPTIONS>
                                           -Wno-attributes)
endfunction()

# ---- the library

list(TRANSFORM _observed_sources PREPEND "${PROJECT_SOURCE_DIR}/")
list(TRANSFORM _observed_kernels PREPEND "${PROJECT_SOURCE_DIR}/")

add_library(telens_observe_kernels OBJECT EXCLUDE_FROM_ALL ${_observed_kernels})
telens_observes(telens_observe_kernels)
telens_unite(telens_observe_kernels ${_observed_kernels})
target_compile_options(telens_observe_kernels PRIVATE $<$<CONFIG:Release>:-O3>)

# Built as a dependency of telens_observer.
add_library(telens_observe SHARED EXCLUDE_FROM_ALL ${_observed_sources})
telens_observes(telens_observe)
telens_unite(telens_observe ${_observed_sources})
target_sources(
  telens_observe PRIVATE $<TARGET_OBJECTS:telens_observe_kernels> $<TARGET_OBJECTS:telens_cpu_loops>
                         $<TARGET_OBJECTS:telens_without_libtorch>)
target_link_libraries(
  telens_observe PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,telens_base>" "${LIBTORCH_CPU_LIBRARY}"
                         ${CMAKE_DL_LIBS})
set_target_properties(telens_observe PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${_observer}")
# Reports functions that exist only in libtelens.so when it links, not at the import.
target_link_options(telens_observe PRIVATE -Wl,-z,defs)
