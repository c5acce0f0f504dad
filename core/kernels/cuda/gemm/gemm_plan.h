// The kernel that multiplies quantized operands on CUDA, and why. Decided by what the host knows
// (card, formats, shapes), never by the values of scales: those lie on the device, and asking for
// them would stop the host. No CUDA header, so that the table of decisions is tested without a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/ops/gemm_choice.h"

namespace telens::cuda {

struct GemmQuestion {
  int capability;  // 10 x major + minor: 90 is Hopper, 100 Blackwell, 120 Blackwell GeForce
  FormatId a_format;
  ScalingMode a_mode;
  FormatId b_format;
  ScalingMode b_mode;  // one that multiplies a's (ops::can_multiply)
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;  // values, also of formats with two codes a byte
  FormatId out_format;
  bool power_of_2_scales = false;  // 128-blocks: all scales of both are known to be
};

struct GemmPlan {
  bool native;            // cuBLASLt's product of the codes; else emulated through BF16
  bool takes_transposed;  // native: codes may lie one column after the other
  // Native, 128-blocks under powers of two: the mode in which their scales are handed over;
  // nullopt: each operand's own.
  std::optional<ScalingMode> scales_as;
  ops::GemmChoice choice;
};

GemmPlan plan_gemm(const GemmQuestion& question);

// The choice to report for a product that cuBLASLt turned down although the plan is native.
ops::GemmChoice choice_without_algorithm(ScalingMode mode);

}  // namespace telens::cuda
