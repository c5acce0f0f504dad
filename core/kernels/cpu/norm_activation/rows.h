// The SIMD part of the activation and normalization kernels: raw memory, on the calling thread.
#pragma once

#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/activation_formula.h"

namespace telens {

// ---- Activations, one row per call (activation_rows.cpp)

// A contiguous row of BF16, FP16 or FP32 elements. A plain activation has `length` elements. A
// gated one has 2 * length: the first half is activated and multiplied by the second half.
struct ActivationRow {
  ops::ActivationFunction function;
  bool gated;
  FormatId format;
  std::int64_t length;
};

void activate_row(const ActivationRow& row, const void* x, void* y);

// `grad` has `length` elements; `dx` has the shape of x.
void activate_row_backward(const ActivationRow& row, const void* grad, const void* x, void* dx);

// ---- Normalizations, a range of rows per call (normalization_rows.cpp)

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
