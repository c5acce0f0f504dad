// The kernel that a GEMM ran with, and the reason. Kernels report it beside the result: the
// operator's schema is the same for every device, and only a kernel knows what it decides by (the
// processor, the shape, the scales). Callers of run_gemm get it in GemmResult (core/gemm/gemm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace telens::ops {

// Both are literals.
struct GemmChoice {
  std::string_view kernel;  // such as "BF16 product of decoded operands"
  std::string_view reason;  // why not the fastest one; "": it is the fastest one
};

// For kernels: reports the choice for the GEMM that this thread runs.
void report_gemm_choice(GemmChoice choice);
// For core/gemm and tests of the operators: the newest choice reported on this thread.
GemmChoice newest_gemm_choice();

// The operator `telens::gemm_algorithms`: which algorithm the library behind the products of x's
// device chose for every description of a product since the process began, one line each, sorted.
// A product of a known description asks the library for no algorithm and adds no line. Empty on
// devices whose products keep no algorithms.
std::vector<std::string> gemm_algorithms(const at::Tensor& x);

}  // namespace telens::ops
