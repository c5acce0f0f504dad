#include "core/kernels/cpu/norm_activation/rows.h"

#include <cmath>

#include "core/kernels/cpu/element_type.h"
#include "core/ops/norm_formula.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/norm_activation/normalization_rows.cpp"
#include <hwy/foreach_target.h>

#include "core/kernels/cpu/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

// Mean and scale of a row.
struct RowStatistics {
  float mean;
  float rstd;
  bool overflowed;  // squares of the deviations exceed FP32's range
};

// ops::RowFactors for lanes.
struct RowLanes {
  FloatVec unit;
  FloatVec mean;
  FloatVec rstd;

  static HWY_INLINE RowLanes of(float mean, float rstd) {
    const auto factors = ops::RowFactors::of(mean, rstd);
    return {hn::Set(kFloats, factors.unit), hn::Set(kFloats, factors.mean),
            hn::Set(kFloats, factors.rstd)};
  }

  HWY_INLINE FloatVec normalized(FloatVec x) const {
    return hn::Mul(hn::MulSub(x, unit, mean), rstd);
  }
};

// The variance is computed from the deviations, not from the mean square: in FP32, the difference
// of two nearly equal numbers would lose a small variance around a large mean.
template <bool centered, bool in_large_units, typename T>
RowStatistics measure_row(const NormForwardJob& job, const T* x) {
  constexpr float kUnit = in_large_units ? ops::kLargeRowUnit : 1.0F;
  const auto count = static_cast<float>(job.columns);
  const auto value = [&](auto at) HWY_ATTR {
    return in_large_units ? hn::Mul(at(x), hn::Set(kFloats, kUnit)) : at(x);
  };
  float mean = 0;
  if constexpr (centered) mean = sum_lanes(job.columns, value) / count;
  const FloatVec means = hn::Set(kFloats, mean);
  const float squares = sum_lanes(job.columns, [&](auto at) HWY_ATTR {
    const FloatVec deviation = hn::Sub(value(at), means);
    return hn::Mul(deviation, deviation);
  });
  return {ops::mean_of_row(mean, kUnit), ops::rstd_of_row(squares / count, job.eps, kUnit),
          !std::isfinite(squares)};
}

template <bool centered, typename T>
void normalize_row(const NormForwardJob& job, std::int64_t row) {
  const std::int64_t n = job.columns;
  const T* x = static_cast<const T*>(job.x) + row * n;
  RowStatistics statistics = measure_row<centered, false>(job, x);
  if (statistics.overflowed) statistics = measure_row<centered, true>(job, x);
  if constexpr (centered) job.mean[row] = statistics.mean;
  job.rstd[row] = statistics.rstd;

  const auto lanes = RowLanes::of(statistics.mean, statistics.rstd);
  T* y = static_cast<T*>(job.y) + row * n;
  if (job.beta == nullptr) {
    map_lanes(n, y,
              [&](auto at) HWY_ATTR { return hn::Mul(lanes.normalized(at(x)), at(job.gamma)); });
  } else {
    map_lanes(n, y, [&](auto at) HWY_ATTR {
      return hn::MulAdd(lanes.normalized(at(x)), at(job.gamma), at(job.beta));
    });
  }
}

// With h = (x - mean) * rstd and g = grad * gamma:
//   dx = rstd * (g - mean(g) - h * mean(g * h)), without mean(g) for RMS
//   dgamma += grad * h, dbeta += grad
template <bool centered, typename T>
void normalize_row_backward(const NormBackwardJob& job, std::int64_t row, float* dgamma,
                            float* dbeta) {
  const std::int64_t n = job.columns;
  const T* x = static_cast<const T*>(job.x) + row * n;
  const T* grad = static_cast<const T*>(job.grad) + row * n;
  T* dx = static_cast<T*>(job.dx) + row * n;
  const float* gamma = job.gamma;
  const auto count = static_cast<float>(n);

  const FloatVec rstd = hn::Set(kFloats, job.rstd[row]);
  const auto lanes = RowLanes::of(centered ? job.mean[row] : 0.0F, job.rstd[row]);
  const auto normalized = [&](auto at) HWY_ATTR { return lanes.normalized(at(x)); };
  const auto scaled = [&](auto at) HWY_ATTR { return hn::Mul(at(grad), at(gamma)); };

  FloatVec mean_g = hn::Zero(kFloats);
  if constexpr (centered) mean_g = hn::Set(kFloats, sum_lanes(n, scaled) / count);
  const float dot =
      sum_lanes(n, [&](auto at) HWY_ATTR { return hn::Mul(scaled(at), normalized(at)); });
  const FloatVec mean_gh = hn::Set(kFloats, dot / count);

  map_lanes(n, dgamma,
            [&](auto at) HWY_ATTR { return hn::MulAdd(at(grad), normalized(at), at(dgamma)); });
  if constexpr (centered) {
    map_lanes(n, dbeta, [&](auto at) HWY_ATTR { return hn::Add(at(dbeta), at(grad)); });
  }
  map_lanes(n, dx, [&](auto at) HWY_ATTR {
    const FloatVec g = hn::Sub(scaled(at), mean_g);
    return hn::Mul(rstd, hn::NegMulAdd(normalized(at), mean_gh, g));
  });
}

void forward(const NormForwardJob& job, std::int64_t begin, std::int64_t end) {
  dispatch_element_type(job.format, [&]<typename T>() {
    const auto normalize = job.centered ? normalize_row<true, T> : normalize_row<false, T>;
    for (std::int64_t row = begin; row < end; ++row) normalize(job, row);
  });
}

void backward(const NormBackwardJob& job, std::int64_t begin, std::int64_t end, float* dgamma,
              float* dbeta) {
  dispatch_element_type(job.format, [&]<typename T>() {
    const auto differentiate =
        job.centered ? normalize_row_backward<true, T> : normalize_row_backward<false, T>;
    for (std::int64_t row = begin; row < end; ++row) differentiate(job, row, dgamma, dbeta);
  });
}

}  // namespace
}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void normalize_rows(const NormForwardJob& job, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(forward)(job, begin, end);
}

void normalize_rows_backward(const NormBackwardJob& job, std::int64_t begin, std::int64_t end,
                             float* dgamma, float* dbeta) {
  HWY_DYNAMIC_DISPATCH(backward)(job, begin, end, dgamma, dbeta);
}

}  // namespace telens
#endif  // HWY_ONCE
