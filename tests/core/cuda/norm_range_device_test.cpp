// The device code of norms over rows whose squares are no FP32 numbers, run on the host, against
// the definition in FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/kernels/cuda/normalization.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

using cuda::NormShared;

constexpr std::int64_t kRows = 2;
constexpr std::int64_t kColumns = 2304;
constexpr float kEps = 1e-5F;

void expect_definition(double magnitude, bool centered) {
  const auto x = random_codes<FP32>(kRows * kColumns, magnitude);
  Aligned<std::uint32_t> y(x.size());
  Aligned<float> gamma(kColumns, 1.0F), mean(kRows), rstd(kRows);
  const cuda::NormArguments arguments{.x = x.data(),
                                      .rows = kRows,
                                      .columns = kColumns,
                                      .gamma = gamma.data(),
                                      .beta = nullptr,
                                      .eps = kEps,
                                      .y = y.data(),
                                      .mean = centered ? mean.data() : nullptr,
                                      .rstd = rstd.data(),
                                      .scale = nullptr,
                                      .format = FormatId::e4m3,
                                      .amax = nullptr,
                                      .codes = nullptr};
  run_grid<NormShared>(2, Order::shuffled, [&](const HostThread& thread, NormShared& shared) {
    cuda::normalize<FP32, cuda::kPackOf<std::uint32_t>>(arguments, thread, shared);
  });
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto element = [&](std::size_t i) -> double {
      return decode<FP32>(x[row * kColumns + i]);
    };
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < kColumns; ++i) sum += element(i);
    const double center = centered ? sum / kColumns : 0;
    for (std::size_t i = 0; i < kColumns; ++i) squares += std::pow(element(i) - center, 2);
    const double factor = 1 / std::sqrt(squares / kColumns + kEps);
    for (std::size_t i = 0; i < kColumns; ++i) {
      const double expected = (element(i) - center) * factor;
      ASSERT_NEAR(decode<FP32>(y[row * kColumns + i]), expected, 1e-5 * std::fabs(expected) + 3e-6)
          << (centered ? "layer norm" : "RMS norm") << " of " << magnitude << ", element " << i;
    }
  }
}

TEST(NormDeviceRange, equals_the_definition_over_the_whole_range_of_fp32) {
  for (const double magnitude : {3e37, 1e20, 1e18, 1e10, 1e-19, 1e-30, 1e-44}) {
    for (const bool centered : {false, true}) expect_definition(magnitude, centered);
  }
}

}  // namespace
}  // namespace telens::testing
