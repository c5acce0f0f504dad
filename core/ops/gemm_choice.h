// The kernel that a GEMM ran with, and the reason. Kernels report it separately from the result:
// the operator's schema is the same on every device, and only a kernel knows its criteria (the
// processor, the shape, the scales). Callers of run_gemm receive it in GemmResult
// (core/gemm/gemm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace telens::ops {

// Both are literals.
struct GemmChoice {
  std::string_view kernel;  // such as "BF16 product of decoded operands"
  std::string_view reason;  // why it is not the fastest one; "" if it is
};

// For kernels: reports the choice for the GEMM that this thread runs.
void report_gemm_choice(GemmChoice choice);
// For core/gemm and tests of the operators: returns the newest choice reported on this thread.
GemmChoice newest_gemm_choice();

// The operator `telens::gemm_algorithms`: returns the algorithm that the GEMM library of x's device
// chose for every description of a product since the process began, one line each, sorted. A
// product with a known description does not query the library for an algorithm and adds no line.
// Empty on devices whose products do not keep algorithms.
std::vector<std::string> gemm_algorithms(const at::Tensor& x);

}  // namespace telens::ops
