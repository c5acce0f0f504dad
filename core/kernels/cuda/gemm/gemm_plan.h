// Chooses the kernel that multiplies quantized operands on CUDA, with the reason. The choice
// depends on what the host knows (card, formats, shapes), never on values of scales: these are on
// the device, and reading them would block the host. Includes no CUDA header, so the decision table
// is tested without a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/ops/gemm.h"

namespace telens::cuda {

struct GemmQuestion {
  int capability;  // 10 x major + minor: 90 is Hopper, 100 Blackwell, 120 Blackwell GeForce
  FormatId a_format;
  ScalingMode a_mode;
  FormatId b_format;
  ScalingMode b_mode;  // a mode that can multiply a's (ops::can_multiply)
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;  // in values, also for formats with two codes per byte
  FormatId out_format;
  bool power_of_2_scales = false;  // 128-blocks: all scales of both are known to be powers of 2
};

struct GemmPlan {
  bool native;            // cuBLASLt multiplies the codes; false: emulated in BF16
  bool takes_transposed;  // native: codes may be column-major
  // Native 128-blocks with power-of-two scales: the mode in which cuBLASLt receives their scales.
  // nullopt if each operand keeps its own mode.
  std::optional<ScalingMode> scales_as;
  ops::GemmChoice choice;
};

GemmPlan plan_gemm(const GemmQuestion& question);

// Returns the choice to report if cuBLASLt rejects a product although the plan is native.
ops::GemmChoice choice_without_algorithm(ScalingMode mode);

}  // namespace telens::cuda
