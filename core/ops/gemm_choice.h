// Which kernel a GEMM ran with, and why. The kernels say it themselves, beside the result: the
// operator's schema is the same for every device, and what a kernel decides by (the processor, the
// shape, the scales) only it knows.
#pragma once

#include <string_view>

namespace telens::ops {

// Both are literals.
struct GemmChoice {
  std::string_view kernel;  // such as "BF16 product of decoded operands"
  std::string_view reason;  // why not the fastest one; "": it is the fastest one
};

// For kernels: of the GEMM that this thread is running. For its caller: of the newest one.
void report_gemm_choice(GemmChoice choice);
GemmChoice newest_gemm_choice();

}  // namespace telens::ops
