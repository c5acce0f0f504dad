// Statistics by their definition, one element after the other, in long double. Uses only
// core/formats.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_layout.h"

namespace telens::testing {

inline double smallest_normal(at::ScalarType dtype) {
  return dtype == at::kHalf ? FP16::kSmallestNormal : FP32::kSmallestNormal;  // BF16 as FP32
}

inline TensorSums reference_sums(const at::Tensor& x) {
  const at::Tensor values = x.to(at::kDouble).contiguous();
  const double* data = values.const_data_ptr<double>();
  TensorSums sums;
  long double sum = 0, l1 = 0, squares = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double v = data[i];
    const double magnitude = std::fabs(v);
    ++sums.numel;
    sums.nan += std::isnan(v);
    sums.posinf += std::isinf(v) && v > 0;
    sums.neginf += std::isinf(v) && v < 0;
    sums.zeros += v == 0;
    sums.subnormals += magnitude > 0 && magnitude < smallest_normal(x.scalar_type());
    if (std::isnan(v)) continue;
    sums.min = std::min(sums.min, v);
    sums.max = std::max(sums.max, v);
    if (v != 0) sums.smallest_nonzero = std::min(sums.smallest_nonzero, magnitude);
    if (std::isinf(v)) continue;
    sum += v;
    l1 += magnitude;
    squares += static_cast<long double>(v) * v;
  }
  sums.sum = static_cast<double>(sum);
  sums.l1 = static_cast<double>(l1);
  sums.sum_squares = static_cast<double>(squares);

  const std::int64_t finite = finite_count(sums);
  long double m2 = 0;
  for (std::int64_t i = 0; finite > 0 && i < values.numel(); ++i) {
    if (std::isfinite(data[i])) m2 += std::pow(data[i] - sum / finite, 2.0L);
  }
  sums.m2 = static_cast<double>(m2);
  return sums;
}

inline CastSums reference_cast(const at::Tensor& x, FormatId format, float scale) {
  const at::Tensor values = x.to(at::kFloat).contiguous();
  const float* data = values.const_data_ptr<float>();
  const float scale_inv = 1 / scale;
  CastSums sums;
  long double squared_error = 0;
  dispatch_fp8_format(format, "reference", [&]<typename Format>() {
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const float v = data[i];
      const auto code = encode<Format>(v * scale, Saturation::saturating);
      const float unclipped = decode<Format>(encode<Format>(v * scale, Saturation::non_saturating));
      const float decoded = decode<Format>(code) * scale_inv;
      ++sums.numel;
      sums.underflows += v != 0 && (code & Format::kMagnitudeMask) == 0;
      sums.overflows += std::fabs(v) > Format::kMax * scale_inv;
      sums.saturated += !std::isnan(v) && !std::isfinite(unclipped);
      squared_error += std::pow(static_cast<long double>(decoded) - v, 2.0L);
    }
  });
  sums.squared_error = static_cast<double>(squared_error);
  if (sums.numel > 0) sums.scale_inv_min = sums.scale_inv_max = scale_inv;
  return sums;
}

}  // namespace telens::testing
