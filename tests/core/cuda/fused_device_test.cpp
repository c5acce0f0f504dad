// The fused device code, which computes a matrix tile by tile and quantizes it without storing it,
// run on the host. Compared with a kernel that stores the matrix, followed by one that quantizes
// it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/kernels/cuda/norm_activation/fused_quantize.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"
#include "tests/core/same_bits.h"

namespace telens::testing {
namespace {

using cuda::BlockMaximum;
using cuda::NormShared;
using cuda::TransposeShared;

constexpr float kScale = 37.0F;

// Two tiles by two tiles, of which the last ones are incomplete.
constexpr std::int64_t kRows = 144;
constexpr std::int64_t kColumns = 176;
constexpr std::size_t kSize = kRows * kColumns;

template <typename Format>
using Codes = Aligned<typename Format::Bits>;

// The results of quantizing a matrix of kRows x kColumns.
struct Cast {
  Aligned<std::uint8_t> codes = Aligned<std::uint8_t>(kSize, 0xcd);
  Aligned<std::uint8_t> transposed = Aligned<std::uint8_t>(kSize, 0xcd);
  Aligned<float> sums = Aligned<float>(2 * kColumns, -1.0F);
  float amax = 0;

  cuda::TileCast arguments() {
    return {kRows, kColumns, &kScale, &amax, codes.data(), transposed.data(), sums.data()};
  }
};

// Quantizes the stored matrix with the kernel that is not fused.
template <typename Format>
Cast get_cast(const Codes<Format>& matrix, FormatId format) {
  Cast cast;
  const cuda::QuantizeTransposeArguments arguments{
      matrix.data(),          kRows,           kColumns, &kScale, &cast.amax, cast.codes.data(),
      cast.transposed.data(), cast.sums.data()};
  run_grid<TransposeShared>(2, Order::forward,
                            [&](const HostThread& thread, TransposeShared& shared) {
                              if (format == FormatId::e4m3) {
                                cuda::quantize_transpose<Format, E4M3>(arguments, thread, shared);
                              } else {
                                cuda::quantize_transpose<Format, E5M2>(arguments, thread, shared);
                              }
                            });
  return cast;
}

template <typename Bits>
void expect_same(const Aligned<Bits>& actual, const Aligned<Bits>& expected, const char* what) {
  EXPECT_TRUE(same_bits(
      std::span<const Bits>(actual), [&](std::size_t i) { return expected[i]; },
      [&](std::size_t i) { return fmt::format("{}, element {}", what, i); }));
}

void expect_same(const Cast& actual, const Cast& expected) {
  expect_same(actual.codes, expected.codes, "codes");
  expect_same(actual.transposed, expected.transposed, "transposed codes");
  EXPECT_EQ(actual.sums, expected.sums);
  EXPECT_EQ(actual.amax, expected.amax);
}

template <typename Visit>
void for_each_format(const Visit& visit) {
  visit.template operator()<BF16>();
  visit.template operator()<FP16>();
  visit.template operator()<FP32>();
}

template <typename Format>
void expect_fused_norm(bool centered, bool with_beta, FormatId format) {
  const Codes<Format> x = random_codes<Format>(kSize, 2, 1);
  std::vector<float> gamma(kColumns);
  std::vector<float> beta(kColumns);
  for (std::size_t i = 0; i < gamma.size(); ++i) {
    gamma[i] = 1.0F + 0.01F * static_cast<float>(i);
    beta[i] = 0.5F - 0.02F * static_cast<float>(i);
  }
  Codes<Format> y(kSize);
  std::vector<float> mean(kRows);
  std::vector<float> rstd(kRows);
  cuda::NormArguments arguments{.x = x.data(),
                                .rows = kRows,
                                .columns = kColumns,
                                .gamma = gamma.data(),
                                .beta = with_beta ? beta.data() : nullptr,
                                .eps = 1e-5F,
                                .y = y.data(),
                                .mean = centered ? mean.data() : nullptr,
                                .rstd = rstd.data(),
                                .scale = &kScale,
                                .format = format,
                                .amax = nullptr,
                                .codes = nullptr};
  const auto run = [&] {
    run_grid<NormShared>(2, Order::forward, [&](const HostThread& thread, NormShared& shared) {
      cuda::normalize<Format, cuda::kPackOf<typename Format::Bits>>(arguments, thread, shared);
    });
  };
  run();
  const std::vector<float> expected_mean = mean;
  const std::vector<float> expected_rstd = rstd;
  const Cast expected = get_cast<Format>(y, format);

  mean.assign(kRows, -1.0F);
  rstd.assign(kRows, -1.0F);
  arguments.y = nullptr;
  run();  // the statistics alone
  Cast actual;
  run_grid<TransposeShared>(
      2, Order::shuffled, [&](const HostThread& thread, TransposeShared& shared) {
        cuda::normalize_and_cast<Format>(arguments, actual.arguments(), thread, shared);
      });
  expect_same(actual, expected);
  if (centered) {
    EXPECT_EQ(mean, expected_mean);
  }
  EXPECT_EQ(rstd, expected_rstd);
}

TEST(FusedQuantizeDevice, norm_codes_equal_codes_of_the_stored_result) {
  for_each_format([]<typename Format>() {
    expect_fused_norm<Format>(/*centered=*/true, /*with_beta=*/true, FormatId::e4m3);
    expect_fused_norm<Format>(/*centered=*/false, /*with_beta=*/false, FormatId::e5m2);
  });
}

constexpr ops::ActivationFunction kFunctions[] = {
    ops::ActivationFunction::gelu, ops::ActivationFunction::qgelu, ops::ActivationFunction::relu,
    ops::ActivationFunction::srelu, ops::ActivationFunction::silu};

template <typename Format, typename Function>
void expect_fused_activation(bool gated) {
  const Codes<Format> x = random_codes<Format>(gated ? 2 * kSize : kSize, 3);
  Codes<Format> y(kSize);
  cuda::ActivationArguments arguments{.x = x.data(),
                                      .rows = kRows,
                                      .width = kColumns,
                                      .y = y.data(),
                                      .gated = gated,
                                      .scale = &kScale,
                                      .format = FormatId::e4m3,
                                      .amax = nullptr,
                                      .codes = nullptr};
  run_grid<BlockMaximum>(2, Order::forward, [&](const HostThread& thread, BlockMaximum& shared) {
    cuda::activate<Format, Function, 1>(arguments, thread, shared);
  });
  Cast actual;
  arguments.y = nullptr;
  run_grid<TransposeShared>(
      2, Order::shuffled, [&](const HostThread& thread, TransposeShared& shared) {
        cuda::activate_and_cast<Format, Function>(arguments, actual.arguments(), thread, shared);
      });
  expect_same(actual, get_cast<Format>(y, FormatId::e4m3));
}

// The gradient of x has kColumns columns, so the gradient of a gated activation's result has half
// as many.
template <typename Format, typename Function>
void expect_fused_gradient(bool gated) {
  const Codes<Format> x = codes_with_special_values<Format>(kSize);
  const Codes<Format> grad = random_codes<Format>(gated ? kSize / 2 : kSize, 1, 0, 4);
  Codes<Format> dx(kSize);
  const cuda::ActivationGradientArguments arguments{.grad = grad.data(),
                                                    .x = x.data(),
                                                    .rows = kRows,
                                                    .width = gated ? kColumns / 2 : kColumns,
                                                    .gated = gated,
                                                    .dx = dx.data()};
  run_grid<BlockMaximum>(2, Order::forward, [&](const HostThread& thread, BlockMaximum&) {
    cuda::activate_backward<Format, Function, 1>(arguments, thread);
  });
  Cast actual;
  run_grid<TransposeShared>(2, Order::shuffled,
                            [&](const HostThread& thread, TransposeShared& shared) {
                              cuda::activate_backward_and_cast<Format, Function>(
                                  arguments, FormatId::e5m2, actual.arguments(), thread, shared);
                            });
  const Cast expected = get_cast<Format>(dx, FormatId::e5m2);
  expect_same(actual.codes, expected.codes, "codes");
  expect_same(actual.transposed, expected.transposed, "transposed codes");
  for (std::size_t i = 0; i < actual.sums.size(); ++i) {  // with NaNs among them
    EXPECT_EQ(std::bit_cast<std::uint32_t>(actual.sums[i]),
              std::bit_cast<std::uint32_t>(expected.sums[i]))
        << i;
  }
}

TEST(FusedQuantizeDevice, activation_codes_equal_codes_of_the_stored_result) {
  for (const bool gated : {false, true}) {
    for (const ops::ActivationFunction function : kFunctions) {
      cuda::dispatch_activation(function, [&]<typename Function>() {
        for_each_format([&]<typename Format>() {
          // All functions in one dtype, all dtypes with one function.
          if (Format::kId != FormatId::bf16 && function != ops::ActivationFunction::silu) return;
          expect_fused_activation<Format, Function>(gated);
          expect_fused_gradient<Format, Function>(gated);
        });
      });
    }
  }
}

// FP32 sums of 128 rows: 127 additions, each with an error of at most 2^-24 of the sum so far.
TEST(FusedQuantizeDevice, column_sums_cover_the_rows_of_a_tile) {
  for_each_format([]<typename Format>() {
    const Codes<Format> x = random_codes<Format>(kSize, 1, 0.3);
    const Cast cast = get_cast<Format>(x, FormatId::e4m3);
    for (std::int64_t tile = 0; tile < 2; ++tile) {
      for (std::int64_t column = 0; column < kColumns; ++column) {
        double sum = 0;
        double magnitudes = 0;
        for (std::int64_t row = 128 * tile; row < std::min<std::int64_t>(kRows, 128 * tile + 128);
             ++row) {
          const double value = decode<Format>(x[static_cast<std::size_t>(row * kColumns + column)]);
          sum += value;
          magnitudes += std::fabs(value);
        }
        ASSERT_NEAR(cast.sums[static_cast<std::size_t>(tile * kColumns + column)], sum,
                    std::ldexp(127.0 * magnitudes, -24))
            << get_name(Format::kId) << ", tile " << tile << ", column " << column;
      }
    }
    Aligned<float> alone(2 * kColumns, -1.0F);
    const cuda::QuantizeTransposeArguments arguments{x.data(), kRows,   kColumns, nullptr,
                                                     nullptr,  nullptr, nullptr,  alone.data()};
    run_grid<TransposeShared>(3, Order::shuffled,
                              [&](const HostThread& thread, TransposeShared& shared) {
                                cuda::quantize_transpose<Format, E4M3>(arguments, thread, shared);
                              });
    EXPECT_EQ(alone, cast.sums);
  });
}

}  // namespace
}  // namespace telens::testing
