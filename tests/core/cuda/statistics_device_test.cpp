// The device code of the statistics, run on the host thread by thread, against the CPU's kernels.
// Counters and extremes must be equal; sums may differ by the bound that holds between any two
// devices.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/kernels/cpu/statistics/statistics_ranges.h"
#include "core/kernels/cuda/statistics/statistics.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

using cuda::MergeStatisticsShared;
using cuda::StatisticsShared;

struct Cast {
  FormatId format;
  float scale;
};

struct Statistics {
  TensorSums tensor;
  std::vector<CastSums> casts;
};

// The bound for the rounding of sums between devices (core/ops/statistics.h).
constexpr double kSumBound = 0x1p-16;       // times the sum of magnitudes
constexpr double kVarianceBound = 0x1p-14;  // times the sum of squares

template <typename Format>
Statistics on_host_grid(const Aligned<typename Format::Bits>& x, const std::vector<Cast>& casts,
                        Order order, const Statistics* accumulator = nullptr) {
  const auto size = static_cast<std::int64_t>(x.size());
  const auto count = static_cast<int>(casts.size());
  const std::int64_t blocks = cuda::statistics_blocks(size);
  std::vector<std::int64_t> parts(static_cast<std::size_t>(blocks * cuda::part_words(count)), -1);
  cuda::StatisticsArguments arguments{x.data(), size, {}, count, parts.data()};
  for (int i = 0; i < count; ++i) {
    arguments.casts[i] = {casts[static_cast<std::size_t>(i)].format,
                          &casts[static_cast<std::size_t>(i)].scale};
  }
  run_grid<StatisticsShared>(blocks, order,
                             [&](const HostThread& thread, StatisticsShared& shared) {
                               cuda::statistics<Format>(arguments, thread, shared);
                             });
  Statistics result;
  if (accumulator != nullptr) result = *accumulator;
  result.casts.resize(casts.size());
  run_grid<MergeStatisticsShared>(
      1, order, [&](const HostThread& thread, MergeStatisticsShared& shared) {
        cuda::merge_statistics(
            {parts.data(), blocks, count, reinterpret_cast<std::int64_t*>(&result.tensor),
             reinterpret_cast<std::int64_t*>(result.casts.data()), accumulator != nullptr},
            thread, shared);
      });
  return result;
}

template <typename Format>
Statistics on_cpu(const Aligned<typename Format::Bits>& x, const std::vector<Cast>& casts) {
  Statistics result{{}, std::vector<CastSums>(casts.size())};
  std::vector<kernels::CastPlan> plans;
  for (const Cast& cast : casts) {
    plans.push_back(kernels::plan_cast(Format::kId, cast.format, cast.scale));
  }
  kernels::add_statistics(Format::kId, x.data(), x.size(), plans, result.tensor, result.casts);
  return result;
}

void expect_close(double actual, double expected, double bound, const char* what) {
  if (std::isfinite(expected)) {
    EXPECT_NEAR(actual, expected, bound) << what;
  } else {
    EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)))
        << what << ": " << actual << " instead of " << expected;
  }
}

void expect_same(const Statistics& actual, const Statistics& expected, const std::string& name) {
  SCOPED_TRACE(name);
  const TensorSums& a = actual.tensor;
  const TensorSums& e = expected.tensor;
  EXPECT_EQ(a.numel, e.numel);
  EXPECT_EQ(a.nan, e.nan);
  EXPECT_EQ(a.posinf, e.posinf);
  EXPECT_EQ(a.neginf, e.neginf);
  EXPECT_EQ(a.zeros, e.zeros);
  EXPECT_EQ(a.subnormals, e.subnormals);
  EXPECT_EQ(bits_as<std::uint64_t>(a.min), bits_as<std::uint64_t>(e.min)) << a.min << " " << e.min;
  EXPECT_EQ(bits_as<std::uint64_t>(a.max), bits_as<std::uint64_t>(e.max)) << a.max << " " << e.max;
  EXPECT_EQ(a.smallest_nonzero, e.smallest_nonzero);
  expect_close(a.sum, e.sum, kSumBound * e.l1, "sum");
  expect_close(a.l1, e.l1, kSumBound * e.l1, "l1");
  expect_close(a.sum_squares, e.sum_squares, kSumBound * e.sum_squares, "sum of squares");
  expect_close(a.m2, e.m2, kVarianceBound * e.sum_squares, "m2");
  for (std::size_t i = 0; i < expected.casts.size(); ++i) {
    SCOPED_TRACE(fmt::format("cast {}", i));
    const CastSums& ac = actual.casts[i];
    const CastSums& ec = expected.casts[i];
    EXPECT_EQ(ac.numel, ec.numel);
    EXPECT_EQ(ac.underflows, ec.underflows);
    EXPECT_EQ(ac.overflows, ec.overflows);
    EXPECT_EQ(ac.saturated, ec.saturated);
    EXPECT_EQ(ac.scale_inv_min, ec.scale_inv_min);
    EXPECT_EQ(ac.scale_inv_max, ec.scale_inv_max);
    expect_close(ac.squared_error, ec.squared_error, kSumBound * ec.squared_error, "error");
  }
}

const std::vector<Cast> kCasts{{FormatId::e4m3, 100.0F},
                               {FormatId::e5m2, 1.0F},
                               {FormatId::e4m3, -3.0F},
                               {FormatId::e4m3, 1e-9F},
                               {FormatId::e5m2, 1e9F}};

template <typename Format>
void expect_statistics(const Aligned<typename Format::Bits>& x, Order order, const char* name) {
  expect_same(on_host_grid<Format>(x, kCasts, order), on_cpu<Format>(x, kCasts),
              fmt::format("{}, {}, {} elements", name, get_name(Format::kId), x.size()));
}

template <typename Format>
void expect_statistics_of_every_kind() {
  constexpr std::size_t kChunk = kStatisticsChunk;
  for (const Order order : kOrders) {
    expect_statistics<Format>(random_codes<Format>(2 * kChunk + 77), order, "normal");
  }
  const Order order = Order::shuffled;
  expect_statistics<Format>({}, order, "empty");
  expect_statistics<Format>(random_codes<Format>(1), order, "one");
  expect_statistics<Format>(random_codes<Format>(300), order, "few");
  expect_statistics<Format>(codes_with_special_values<Format>(kChunk + 5), order, "special");
  expect_statistics<Format>(random_codes<Format>(kChunk, 1e-3, 100.0), order, "around a mean");
  expect_statistics<Format>(random_codes<Format>(kChunk, 1e-7), order, "small");
  expect_statistics<Format>(random_codes<Format>(kChunk, 1e4), order, "large");
  expect_statistics<Format>(Aligned<typename Format::Bits>(kChunk, 0), order, "zeros");
  const auto negative_zero = static_cast<typename Format::Bits>(Format::kSignMask);
  expect_statistics<Format>(Aligned<typename Format::Bits>(kChunk, negative_zero), order, "-0");
  Aligned<typename Format::Bits> relu = random_codes<Format>(kChunk);
  for (auto& code : relu) {
    if ((code & Format::kSignMask) != 0) code = 0;
  }
  expect_statistics<Format>(relu, order, "not negative");
  for (auto& code : relu) code |= Format::kSignMask;
  expect_statistics<Format>(relu, order, "not positive");
}

TEST(StatisticsDevice, bf16_matches_cpu) { expect_statistics_of_every_kind<BF16>(); }
TEST(StatisticsDevice, fp16_matches_cpu) { expect_statistics_of_every_kind<FP16>(); }
TEST(StatisticsDevice, fp32_matches_cpu) { expect_statistics_of_every_kind<FP32>(); }

TEST(StatisticsDevice, sums_of_squares_beyond_fp32_are_finite) {
  expect_statistics<FP32>(random_codes<FP32>(kStatisticsChunk, 1e30), Order::forward, "huge");
  expect_statistics<FP32>(random_codes<FP32>(kStatisticsChunk, 1e-35), Order::forward, "tiny");
  expect_statistics<BF16>(random_codes<BF16>(kStatisticsChunk, 1e30), Order::forward, "huge");
  expect_statistics<BF16>(random_codes<BF16>(kStatisticsChunk, 1e-39), Order::forward, "tiny");
}

TEST(StatisticsDevice, accumulating_parts_gives_the_whole) {
  const auto first = random_codes<BF16>(kStatisticsChunk + 3, 1, 5);
  const auto second = random_codes<BF16>(kStatisticsChunk + 9, 2, -7, 2);
  Aligned<std::uint16_t> both = first;
  both.insert(both.end(), second.begin(), second.end());
  const Statistics part = on_host_grid<BF16>(first, kCasts, Order::forward);
  expect_same(on_host_grid<BF16>(second, kCasts, Order::forward, &part), on_cpu<BF16>(both, kCasts),
              "two parts");
}

TEST(StatisticsDevice, results_do_not_depend_on_the_order_of_threads) {
  const auto x = codes_with_special_values<BF16>(2 * kStatisticsChunk + 5);
  const Statistics forward = on_host_grid<BF16>(x, kCasts, Order::forward);
  for (const Order order : kOrders) {
    const Statistics other = on_host_grid<BF16>(x, kCasts, order);
    EXPECT_EQ(other.tensor.sum, forward.tensor.sum);
    EXPECT_EQ(other.tensor.m2, forward.tensor.m2);
  }
}

template <typename Format>
CentralMoments moments_on_host_grid(const Aligned<typename Format::Bits>& x, Order order,
                                    CentralMoments into = {}) {
  using Shared = cuda::MergeShared<CentralMoments>;
  const auto size = static_cast<std::int64_t>(x.size());
  const std::int64_t blocks = cuda::central_moments_blocks(size);
  std::vector<CentralMoments> parts(static_cast<std::size_t>(blocks));
  run_grid<Shared>(blocks, order, [&](const HostThread& thread, Shared& shared) {
    cuda::central_moments<Format>({x.data(), size, parts.data()}, thread, shared);
  });
  const cuda::MergeArguments<CentralMoments> arguments{parts.data(), blocks, &into, true};
  run_grid<Shared>(1, order, [&](const HostThread& thread, Shared& shared) {
    cuda::merge_parts(arguments, thread, shared);
  });
  return into;
}

template <typename Format>
void expect_moments(const Aligned<typename Format::Bits>& x, const char* name) {
  SCOPED_TRACE(name);
  CentralMoments cpu;
  kernels::add_central_moments(Format::kId, x.data(), x.size(), cpu);
  for (const Order order : kOrders) {
    const CentralMoments device = moments_on_host_grid<Format>(x, order);
    ASSERT_EQ(device.count, cpu.count);
    const double deviation =
        cpu.count == 0 ? 0 : std::sqrt(cpu.m2 / static_cast<double>(cpu.count));
    // The bound after 1000 merges (core/ops/statistics_layout.h).
    const double rounding = 0x1p-43 * std::fabs(cpu.mean);
    const double relative = deviation == 0 ? 0 : 0x1p-40 + 4 * rounding / deviation;
    EXPECT_NEAR(device.mean, cpu.mean, rounding + 0x1p-40 * deviation);
    EXPECT_NEAR(device.m2, cpu.m2, relative * cpu.m2);
    EXPECT_NEAR(device.m3, cpu.m3, relative * std::sqrt(cpu.m2 * cpu.m4));
    EXPECT_NEAR(device.m4, cpu.m4, relative * cpu.m4);
  }
}

template <typename Format>
void expect_moments_of_every_kind() {
  constexpr std::size_t kChunk = kStatisticsChunk;
  expect_moments<Format>(random_codes<Format>(2 * kChunk + 77), "normal");
  expect_moments<Format>({}, "empty");
  expect_moments<Format>(random_codes<Format>(1), "one");
  expect_moments<Format>(random_codes<Format>(300), "few");
  expect_moments<Format>(random_codes<Format>(kChunk, 1e-3, 100.0), "around a mean");
  expect_moments<Format>(codes_with_special_values<Format>(kChunk + 5), "special");
  expect_moments<Format>(Aligned<typename Format::Bits>(kChunk, 0), "zeros");
}

TEST(CentralMomentsDevice, bf16_matches_cpu) { expect_moments_of_every_kind<BF16>(); }
TEST(CentralMomentsDevice, fp16_matches_cpu) { expect_moments_of_every_kind<FP16>(); }
TEST(CentralMomentsDevice, fp32_matches_cpu) { expect_moments_of_every_kind<FP32>(); }

TEST(CentralMomentsDevice, accumulating_parts_gives_the_whole) {
  const auto first = random_codes<BF16>(kStatisticsChunk + 3, 1, 5);
  const auto second = random_codes<BF16>(kStatisticsChunk + 9, 2, -7, 2);
  const CentralMoments part = moments_on_host_grid<BF16>(first, Order::forward);
  const CentralMoments device = moments_on_host_grid<BF16>(second, Order::forward, part);
  CentralMoments cpu;
  kernels::add_central_moments(FormatId::bf16, first.data(), first.size(), cpu);
  kernels::add_central_moments(FormatId::bf16, second.data(), second.size(), cpu);
  EXPECT_EQ(device.count, cpu.count);
  EXPECT_NEAR(device.m4, cpu.m4, 0x1p-40 * cpu.m4);
}

}  // namespace
}  // namespace telens::testing
