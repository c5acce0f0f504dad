// The device code of norms and activations, run on the host thread by thread. It must equal the
// CPU's kernels up to the rounding of sums and exponentials, and the fused quantization must equal
// the unfused pair of kernels bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/kernels/cpu/norm_activation/rows.h"
#include "core/kernels/cuda/norm_activation/activation.cuh"
#include "core/kernels/cuda/norm_activation/normalization.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"
#include "tests/core/same_bits.h"

namespace telens::testing {
namespace {

using cuda::BlockMaximum;
using cuda::NormShared;

template <typename Format>
using Codes = Aligned<typename Format::Bits>;

// Another order of sums and another library's exponential change the last bits of FP32; rounded to
// 16 bits, a result may differ by one step.
template <typename Format>
void expect_close(const Codes<Format>& actual, const Codes<Format>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  const double unit = std::ldexp(1.0, -Format::kMantissaBits);
  const double relative = Format::kId == FormatId::fp32 ? 1e-5 : unit;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = decode<Format>(actual[i]);
    const double e = decode<Format>(expected[i]);
    ASSERT_NEAR(a, e, relative * std::fabs(e) + 1e-5)
        << what << ", " << get_name(Format::kId) << ", element " << i;
  }
}

template <typename Visit>
void for_each_format(const Visit& visit) {
  visit.template operator()<BF16>();
  visit.template operator()<FP16>();
  visit.template operator()<FP32>();
}

std::vector<float> factors(std::int64_t size, float mean) {
  std::vector<float> values(static_cast<std::size_t>(size));
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(mean, 0.3F);
  for (float& value : values) value = normal(engine);
  return values;
}

template <typename Format>
struct Norm {
  Codes<Format> y;
  std::vector<float> mean;
  std::vector<float> rstd;
  Aligned<std::uint8_t> codes;
  float amax = 0;
};

struct NormCase {
  std::int64_t rows;
  std::int64_t columns;
  bool centered;
};

constexpr NormCase kNormCases[] = {{3, 2304, true}, {2, 640, false}, {2, 77, true}};
constexpr float kScale = 37.0F;
constexpr float kEps = 1e-5F;

template <typename Format>
Norm<Format> norm_on_host_grid(const NormCase& shape, const Codes<Format>& x,
                               const std::vector<float>& gamma, const std::vector<float>& beta,
                               FormatId format, Order order) {
  const auto size = static_cast<std::size_t>(shape.rows * shape.columns);
  Norm<Format> norm{Codes<Format>(size), std::vector<float>(3), std::vector<float>(3),
                    Aligned<std::uint8_t>(size)};
  const cuda::NormArguments arguments{x.data(),
                                      shape.rows,
                                      shape.columns,
                                      gamma.data(),
                                      shape.centered ? beta.data() : nullptr,
                                      kEps,
                                      norm.y.data(),
                                      shape.centered ? norm.mean.data() : nullptr,
                                      norm.rstd.data(),
                                      &kScale,
                                      format,
                                      &norm.amax,
                                      norm.codes.data()};
  run_grid<NormShared>(2, order, [&](const HostThread& thread, NormShared& shared) {
    constexpr int kWidth = cuda::kPackOf<typename Format::Bits>;
    if (shape.columns % kWidth == 0) {
      cuda::normalize<Format, kWidth>(arguments, thread, shared);
    } else {
      cuda::normalize<Format, 1>(arguments, thread, shared);
    }
  });
  return norm;
}

// The codes and the amax that quantize gives for y.
template <typename Format>
void expect_codes_of(const Codes<Format>& y, const Aligned<std::uint8_t>& codes, float amax,
                     FormatId format) {
  Aligned<std::uint8_t> expected(y.size());
  float expected_amax = 0;
  const cuda::QuantizeArguments arguments{y.data(), static_cast<std::int64_t>(y.size()), &kScale,
                                          &expected_amax, expected.data()};
  run_grid<BlockMaximum>(1, Order::forward, [&](const HostThread& thread, BlockMaximum& shared) {
    if (format == FormatId::e4m3) {
      cuda::quantize<Format, E4M3, 1>(arguments, thread, shared);
    } else {
      cuda::quantize<Format, E5M2, 1>(arguments, thread, shared);
    }
  });
  EXPECT_TRUE(same_bits(
      std::span<const std::uint8_t>(codes), [&](std::size_t i) { return expected[i]; },
      [&](std::size_t i) { return fmt::format("element {}", i); }));
  EXPECT_EQ(amax, expected_amax);
}

TEST(NormDevice, forward_matches_cpu_and_fused_codes_match_quantize) {
  for (const NormCase& shape : kNormCases) {
    for_each_format([&]<typename Format>() {
      const auto size = static_cast<std::size_t>(shape.rows * shape.columns);
      const Codes<Format> x = random_codes<Format>(size, 2, 1);
      const auto gamma = factors(shape.columns, 1);
      const auto beta = factors(shape.columns, 0);
      const FormatId format = shape.centered ? FormatId::e4m3 : FormatId::e5m2;
      const auto actual = norm_on_host_grid<Format>(shape, x, gamma, beta, format, Order::shuffled);

      Codes<Format> y(size);
      std::vector<float> mean(3);
      std::vector<float> rstd(3);
      normalize_rows({Format::kId, shape.columns, x.data(), gamma.data(),
                      shape.centered ? beta.data() : nullptr, shape.centered, kEps, y.data(),
                      shape.centered ? mean.data() : nullptr, rstd.data()},
                     0, shape.rows);
      expect_close<Format>(actual.y, y, "y");
      for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
        EXPECT_NEAR(actual.mean[row], mean[row], 1e-5F);
        EXPECT_NEAR(actual.rstd[row], rstd[row], 1e-5F * rstd[row]);
      }
      expect_codes_of<Format>(actual.y, actual.codes, actual.amax, format);
      for (const Order order : kOrders) {
        EXPECT_EQ(norm_on_host_grid<Format>(shape, x, gamma, beta, format, order).y, actual.y);
      }
    });
  }
}

TEST(NormDevice, backward_matches_cpu) {
  for (const NormCase& shape : kNormCases) {
    for_each_format([&]<typename Format>() {
      const auto size = static_cast<std::size_t>(shape.rows * shape.columns);
      const auto columns = static_cast<std::size_t>(shape.columns);
      const Codes<Format> x = random_codes<Format>(size, 2, 1);
      const Codes<Format> grad = random_codes<Format>(size, 1, 0, 9);
      const auto gamma = factors(shape.columns, 1);
      const std::vector<float> mean{0.9F, 1.0F, 1.1F};
      const std::vector<float> rstd{0.5F, 0.51F, 0.49F};
      const float* means = shape.centered ? mean.data() : nullptr;
      Codes<Format> dx(size);
      run_grid<NormShared>(2, Order::shuffled, [&](const HostThread& thread, NormShared& shared) {
        cuda::normalize_backward<Format, 1>({grad.data(), x.data(), shape.rows, shape.columns,
                                             gamma.data(), means, rstd.data(), dx.data()},
                                            thread, shared);
      });
      // Two chunks of two rows; the second one may be incomplete or empty.
      const std::int64_t groups = (shape.columns + cuda::kThreads - 1) / cuda::kThreads;
      std::vector<float> dgamma(2 * columns);
      std::vector<float> dbeta(2 * columns);
      run_grid<NormShared>(2 * groups, Order::forward, [&](const HostThread& thread, NormShared&) {
        cuda::norm_parameter_gradients<Format>(
            {grad.data(), x.data(), shape.rows, shape.columns, 2, means, rstd.data(), dgamma.data(),
             shape.centered ? dbeta.data() : nullptr},
            thread);
      });

      Codes<Format> expected_dx(size);
      std::vector<float> expected_dgamma(columns);
      std::vector<float> expected_dbeta(columns);
      normalize_rows_backward({Format::kId, shape.columns, grad.data(), x.data(), gamma.data(),
                               shape.centered, means, rstd.data(), expected_dx.data()},
                              0, shape.rows, expected_dgamma.data(),
                              shape.centered ? expected_dbeta.data() : nullptr);
      expect_close<Format>(dx, expected_dx, "dx");
      for (std::size_t i = 0; i < columns; ++i) {
        EXPECT_NEAR(dgamma[i] + dgamma[columns + i], expected_dgamma[i], 1e-4);
        EXPECT_NEAR(dbeta[i] + dbeta[columns + i], expected_dbeta[i], 1e-4);
      }
    });
  }
}

constexpr ops::ActivationFunction kFunctions[] = {
    ops::ActivationFunction::gelu, ops::ActivationFunction::qgelu, ops::ActivationFunction::relu,
    ops::ActivationFunction::srelu, ops::ActivationFunction::silu};

TEST(ActivationDevice, forward_and_backward_match_cpu) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t width : {640, 77}) {
    for (const bool gated : {false, true}) {
      for (const ops::ActivationFunction function : kFunctions) {
        for_each_format([&]<typename Format>() {
          using Bits = typename Format::Bits;
          const auto outputs = static_cast<std::size_t>(kRows * width);
          const Codes<Format> x = random_codes<Format>(gated ? 2 * outputs : outputs, 3);
          const Codes<Format> grad = random_codes<Format>(outputs, 1, 0, 4);
          Codes<Format> y(outputs);
          Codes<Format> dx(x.size());
          Aligned<std::uint8_t> codes(outputs);
          float amax = 0;
          cuda::dispatch_activation(function, [&]<typename Function>() {
            const cuda::ActivationArguments forward{x.data(),       kRows, width,
                                                    y.data(),       gated, &kScale,
                                                    FormatId::e4m3, &amax, codes.data()};
            const cuda::ActivationGradientArguments backward{grad.data(), x.data(), kRows,
                                                             width,       gated,    dx.data()};
            constexpr int kWidth = cuda::kPackOf<Bits>;
            run_grid<BlockMaximum>(
                2, Order::shuffled, [&](const HostThread& thread, BlockMaximum& shared) {
                  if (width % kWidth == 0) {
                    cuda::activate<Format, Function, kWidth>(forward, thread, shared);
                    cuda::activate_backward<Format, Function, kWidth>(backward, thread);
                  } else {
                    cuda::activate<Format, Function, 1>(forward, thread, shared);
                    cuda::activate_backward<Format, Function, 1>(backward, thread);
                  }
                });
          });
          Codes<Format> expected_y(outputs);
          Codes<Format> expected_dx(x.size());
          for (std::int64_t row = 0; row < kRows; ++row) {
            const ActivationRow of_row{function, gated, Format::kId, width};
            const std::int64_t from = row * width * (gated ? 2 : 1);
            activate_row(of_row, x.data() + from, expected_y.data() + row * width);
            activate_row_backward(of_row, grad.data() + row * width, x.data() + from,
                                  expected_dx.data() + from);
          }
          expect_close<Format>(y, expected_y, "y");
          expect_close<Format>(dx, expected_dx, "dx");
          expect_codes_of<Format>(y, codes, amax, FormatId::e4m3);
        });
      }
    }
  }
}

}  // namespace
}  // namespace telens::testing
