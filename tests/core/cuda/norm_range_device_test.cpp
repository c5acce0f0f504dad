// The device code of norms for rows whose squares or deviations are beyond FP32's range, run on the
// host, against the definition in FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/kernels/cuda/norm_activation/normalization.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

using cuda::NormShared;

constexpr std::size_t kRows = 2;
constexpr std::size_t kColumns = 2304;
constexpr float kEps = 1e-5F;
constexpr int kPack = cuda::kPackOf<std::uint32_t>;

using Codes = Aligned<std::uint32_t>;

struct Norm {
  Codes y = Codes(kRows * kColumns);
  Aligned<float> mean = Aligned<float>(kRows);
  Aligned<float> rstd = Aligned<float>(kRows);
  Codes dx = Codes(kRows * kColumns);
  Aligned<float> dgamma = Aligned<float>(kColumns);
};

Norm run_norm(const Codes& x, const Codes& grad, const Aligned<float>& gamma, bool centered) {
  Norm norm;
  float* const mean = centered ? norm.mean.data() : nullptr;
  const cuda::NormArguments forward{.x = x.data(),
                                    .rows = kRows,
                                    .columns = kColumns,
                                    .gamma = gamma.data(),
                                    .beta = nullptr,
                                    .eps = kEps,
                                    .y = norm.y.data(),
                                    .mean = mean,
                                    .rstd = norm.rstd.data(),
                                    .scale = nullptr,
                                    .format = FormatId::e4m3,
                                    .amax = nullptr,
                                    .codes = nullptr};
  run_grid<NormShared>(2, Order::shuffled, [&](const HostThread& thread, NormShared& shared) {
    cuda::normalize<FP32, kPack>(forward, thread, shared);
  });
  run_grid<NormShared>(2, Order::shuffled, [&](const HostThread& thread, NormShared& shared) {
    cuda::normalize_backward<FP32, kPack>({grad.data(), x.data(), kRows, kColumns, gamma.data(),
                                           mean, norm.rstd.data(), norm.dx.data()},
                                          thread, shared);
  });
  constexpr std::int64_t kGroups = (kColumns + cuda::kThreads - 1) / cuda::kThreads;
  run_grid<NormShared>(kGroups, Order::forward, [&](const HostThread& thread, NormShared&) {
    cuda::norm_parameter_gradients<FP32>({grad.data(), x.data(), kRows, kColumns, kRows, mean,
                                          norm.rstd.data(), norm.dgamma.data(), nullptr},
                                         thread);
  });
  return norm;
}

// A row by the definition.
struct Definition {
  std::vector<double> normalized;
  std::vector<double> dx;
  double rstd;
};

double compute_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::vector<double> get_row(const Codes& codes, std::size_t row) {
  std::vector<double> values(kColumns);
  for (std::size_t i = 0; i < kColumns; ++i) values[i] = decode<FP32>(codes[row * kColumns + i]);
  return values;
}

Definition definition(const std::vector<double>& x, const std::vector<double>& grad,
                      const Aligned<float>& gamma, bool centered) {
  const double center = centered ? compute_mean(x) : 0;
  std::vector<double> squares(kColumns), g(kColumns), products(kColumns);
  for (std::size_t i = 0; i < kColumns; ++i) squares[i] = std::pow(x[i] - center, 2);
  Definition row{std::vector<double>(kColumns), std::vector<double>(kColumns),
                 1 / std::sqrt(compute_mean(squares) + kEps)};
  for (std::size_t i = 0; i < kColumns; ++i) {
    row.normalized[i] = (x[i] - center) * row.rstd;
    g[i] = grad[i] * gamma[i];
    products[i] = g[i] * row.normalized[i];
  }
  const double mean_g = centered ? compute_mean(g) : 0;
  const double mean_products = compute_mean(products);
  for (std::size_t i = 0; i < kColumns; ++i) {
    row.dx[i] = row.rstd * (g[i] - mean_g - row.normalized[i] * mean_products);
  }
  return row;
}

void expect_definition(const Codes& x, bool centered) {
  const Codes grad = random_codes<FP32>(x.size(), 1, 0, 9);
  Aligned<float> gamma(kColumns);
  for (std::size_t i = 0; i < kColumns; ++i) gamma[i] = 1 + static_cast<float>(i % 3) / 4;
  const Norm norm = run_norm(x, grad, gamma, centered);
  std::vector<double> dgamma(kColumns);
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::vector<double> grads = get_row(grad, row);
    const Definition expected = definition(get_row(x, row), grads, gamma, centered);
    const std::vector<double> y = get_row(norm.y, row), dx = get_row(norm.dx, row);
    for (std::size_t i = 0; i < kColumns; ++i) {
      const double value = expected.normalized[i] * gamma[i];
      ASSERT_NEAR(y[i], value, 1e-5 * std::fabs(value) + 3e-6) << "y " << i;
      ASSERT_NEAR(dx[i], expected.dx[i],
                  1e-5 * (std::fabs(expected.dx[i]) + expected.rstd) +
                      16 * double{FP32::kSmallestSubnormal})
          << "dx " << i;
      dgamma[i] += grads[i] * expected.normalized[i];
    }
  }
  for (std::size_t i = 0; i < kColumns; ++i) {
    ASSERT_NEAR(norm.dgamma[i], dgamma[i], 1e-5 * std::fabs(dgamma[i]) + 3e-5) << "dgamma " << i;
  }
}

TEST(NormDeviceRange, equals_the_definition_over_the_whole_range_of_fp32) {
  for (const double magnitude : {3e37, 1e20, 1e18, 1e10, 1e-19, 1e-30, 1e-44}) {
    for (const bool centered : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << (centered ? "layer norm" : "RMS norm") << " of " << magnitude);
      expect_definition(random_codes<FP32>(kRows * kColumns, magnitude), centered);
    }
  }
}

// Repeats the pattern along each row, reversed in every second row.
Codes repeated(const std::vector<float>& pattern) {
  Codes x(kRows * kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float value = pattern[i % pattern.size()];
    x[i] = encode<FP32>(i < kColumns ? value : -value, Saturation::non_saturating);
  }
  return x;
}

TEST(NormDeviceRange, equals_definition_if_deviations_exceed_fp32) {
  constexpr float kMax = FP32::kMax;
  for (const auto& pattern : std::vector<std::vector<float>>{
           {3e38F, -3e38F, -3e38F, -3e38F}, {kMax, kMax, kMax, -kMax}, {kMax, -kMax, 1, 3e37F}}) {
    for (const bool centered : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << (centered ? "layer norm" : "RMS norm") << " of " << pattern[0]);
      expect_definition(repeated(pattern), centered);
    }
  }
}

// The mean of equal numbers may be rounded up or down.
TEST(NormDeviceRange, one_number_at_the_end_of_the_range_gives_finite_result) {
  const Codes ones = repeated({1});
  const Norm norm = run_norm(repeated({FP32::kMax}), ones, Aligned<float>(kColumns, 1.0F), true);
  for (std::size_t row = 0; row < kRows; ++row) {
    EXPECT_NEAR(std::fabs(norm.mean[row]), FP32::kMax, 1e-6 * FP32::kMax);
    for (const double y : get_row(norm.y, row)) ASSERT_LE(std::fabs(y), 1.001);
    for (const double dx : get_row(norm.dx, row)) ASSERT_LE(std::fabs(dx), 1e-30);
  }
}

}  // namespace
}  // namespace telens::testing
