// The SIMD part of the normalization kernels: raw memory, one range of rows per call.
#pragma once

#include <cstdint>

#include "core/formats/format_id.h"

namespace telens {

// Contiguous [rows, columns] of BF16, FP16 or FP32 elements.
struct NormForwardJob {
  FormatId format;
  std::int64_t columns;
  const void* x;
  const float* gamma;  // the whole factor: 1 + weight for zero-centered weights
  const float* beta;   // nullptr: none
  bool centered;       // true for layer normalization, false for RMS
  float eps;
  void* y;
  float* mean;  // [rows]; unused by RMS
  float* rstd;  // [rows]
};

struct NormBackwardJob {
  FormatId format;
  std::int64_t columns;
  const void* grad;
  const void* x;
  const float* gamma;
  bool centered;
  const float* mean;  // [rows]; unused by RMS
  const float* rstd;  // [rows]
  void* dx;
};

void normalize_rows(const NormForwardJob& job, std::int64_t begin, std::int64_t end);

// Adds the gradients of these rows, in row order, to dgamma and dbeta, both [columns]. dbeta is
// nullptr for RMS.
void normalize_rows_backward(const NormBackwardJob& job, std::int64_t begin, std::int64_t end,
                             float* dgamma, float* dbeta);

}  // namespace telens
