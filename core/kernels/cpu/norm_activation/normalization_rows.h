// The SIMD part of the normalization kernels: plain memory, a range of rows a call.
#pragma once

#include <cstdint>

#include "core/formats/format_id.h"

namespace telens {

// [rows, columns], contiguous, elements of one of BF16, FP16 and FP32.
struct NormForwardJob {
  FormatId format;
  std::int64_t columns;
  const void* x;
  const float* gamma;  // the whole factor: 1 + weight for zero-centered weights
  const float* beta;   // nullptr: none
  bool centered;       // layer normalization; RMS otherwise
  float eps;
  void* y;
  float* mean;  // [rows]; not used by RMS
  float* rstd;  // [rows]
};

struct NormBackwardJob {
  FormatId format;
  std::int64_t columns;
  const void* grad;
  const void* x;
  const float* gamma;
  bool centered;
  const float* mean;  // [rows]; not used by RMS
  const float* rstd;  // [rows]
  void* dx;
};

void normalize_rows(const NormForwardJob& job, std::int64_t begin, std::int64_t end);

// dgamma, dbeta: [columns], to which the gradients of these rows are added in their order; dbeta
// is nullptr for RMS.
void normalize_rows_backward(const NormBackwardJob& job, std::int64_t begin, std::int64_t end,
                             float* dgamma, float* dbeta);

}  // namespace telens
