// The device code that reads a tensor together with its block-scaled codes, against the CPU's
// operators. It runs on the host, thread by thread. Counters and extremes must be equal; sums may
// differ by the bound that holds between any two devices.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/cuda/statistics/cast_tensors.h"
#include "core/kernels/cuda/statistics/sums.cuh"
#include "core/ops/block_errors.h"
#include "hooks/statistics/accumulator.h"
#include "tests/core/block_casts.h"
#include "tests/core/cuda/block_data.h"
#include "tests/core/cuda/host_grid.h"
#include "tests/core/statistics_checks.h"

namespace telens::testing {
namespace {

using cuda::BlockDirection;
using cuda::CastInMemory;
using cuda::CodePairs;
using cuda::MergeShared;
using ops::BlockCast;

struct Nothing {};

// Calls visit.operator()<Input, ScaleFormat, pairs>().
template <typename Visit>
void with_codes(CodePairs pairs, const BlockCast& cast, const Visit& visit) {
  const auto fp8 = [&]<typename Input>() {
    if (cast.mode == ScalingMode::mxfp8) {
      visit.template operator()<Input, E8M0, CodePairs::none>();
    } else {
      visit.template operator()<Input, FP32, CodePairs::none>();
    }
  };
  if (pairs == CodePairs::along_row) {
    visit.template operator()<E2M1, E4M3, CodePairs::along_row>();
  } else if (pairs == CodePairs::down_columns) {
    visit.template operator()<E2M1, E4M3, CodePairs::down_columns>();
  } else if (cast.format == FormatId::e4m3) {
    fp8.template operator()<E4M3>();
  } else {
    fp8.template operator()<E5M2>();
  }
}

// Calls run(matrix) with loads of whole packs, where the matrix allows them, and of single
// elements.
template <typename Run>
void with_and_without_packs(const cuda::CastMatrix& matrix, const Run& run) {
  for (const bool whole : {true, false}) {
    if (whole && (matrix.x.columns % 8 != 0 || matrix.codes.columns % 8 != 0)) continue;
    cuda::CastMatrix each = matrix;
    each.whole = whole;
    run(each);
  }
}

std::string to_text(const NamedCast& each) {
  return fmt::format("{} of {}, {}", each.name, get_name(each.cast.format),
                     c10::str(each.x.sizes()));
}

template <typename Sums>
Sums merged(const std::vector<Sums>& parts, const Sums& into, Order order) {
  Sums result = into;
  run_grid<MergeShared<Sums>>(1, order, [&](const HostThread& thread, MergeShared<Sums>& shared) {
    cuda::merge_parts<Sums>({parts.data(), static_cast<std::int64_t>(parts.size()), &result, true},
                            thread, shared);
  });
  return result;
}

// Calls expect(cast) for every quantized copy of every matrix, in every dtype.
template <typename Expect>
void for_each_cast(const Expect& expect) {
  for_each_input_dtype([&]<typename X>(at::ScalarType dtype) {
    for (const auto& [rows, columns] : shapes_with_elements(X::kId)) {
      for (const NamedMatrix& named : block_matrices<X>(rows, columns, dtype)) {
        SCOPED_TRACE(fmt::format("{} of {}", named.name, get_name(X::kId)));
        for (const NamedCast& each : get_casts(named.x)) expect.template operator()<X>(each);
      }
    }
  });
}

// ---- statistics ----

template <typename X>
CastSums statistics_on_host_grid(const BlockCast& cast, const cuda::CastMatrix& matrix,
                                 const CastSums& into, Order order) {
  std::vector<CastSums> parts(static_cast<std::size_t>(cuda::block_cast_grid(matrix)));
  with_codes(matrix.codes.pairs, cast,
             [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
               using Shared = MergeShared<CastSums>;
               run_grid<Shared>(static_cast<std::int64_t>(parts.size()), order,
                                [&](const HostThread& thread, Shared& shared) {
                                  cuda::block_cast_statistics<Input, ScaleFormat, X, pairs>(
                                      {matrix, parts.data()}, thread, shared);
                                });
             });
  return merged(parts, into, order);
}

CastSums statistics_on_cpu(const NamedCast& each) {
  at::Tensor accumulator = ops::empty_block_casts(at::kCPU);
  ops::accumulate_block_cast_statistics(each.x, each.cast, accumulator);
  return typed(accumulator);
}

template <typename X>
void expect_statistics(const NamedCast& each, Order order) {
  const CastSums expected = statistics_on_cpu(each);
  const auto cast = CastInMemory::of(each.x, each.cast.codes, each.cast.mode);
  with_and_without_packs(cast.matrix, [&](const cuda::CastMatrix& matrix) {
    SCOPED_TRACE(fmt::format("{}, in packs {}", to_text(each), matrix.whole));
    expect_cast(statistics_on_host_grid<X>(each.cast, matrix, CastSums(), order), expected,
                kSumsBound);
  });
}

TEST(BlockCastsDevice, statistics_of_every_copy_match_cpu) {
  for_each_cast(
      []<typename X>(const NamedCast& each) { expect_statistics<X>(each, Order::shuffled); });
}

TEST(BlockCastsDevice, statistics_do_not_depend_on_the_order_of_threads) {
  at::manual_seed(2);
  for (const NamedCast& each : get_casts(wide_data({150, 264}, at::kBFloat16))) {
    const auto cast = CastInMemory::of(each.x, each.cast.codes, each.cast.mode);
    const auto run = [&](Order order) {
      return statistics_on_host_grid<BF16>(each.cast, cast.matrix, CastSums(), order);
    };
    const CastSums forward = run(Order::forward);
    for (const Order order : kOrders) expect_cast(run(order), forward, 0);
  }
}

TEST(BlockCastsDevice, sums_errors_whose_squares_exceed_fp32) {
  // In blocks that contain the outlier all other elements become 0, so their errors are the
  // elements themselves.
  for (const float outlier : {0x1p126F, 0x1p-20F}) {
    at::Tensor x = at::full({64, 256}, outlier * 0x1p-40F);
    x.select(1, 5).fill_(outlier);
    for (const NamedCast& each : get_casts(x)) expect_statistics<FP32>(each, Order::forward);
  }
}

TEST(BlockCastsDevice, statistics_of_a_view_are_merged_into_existing_sums) {
  at::manual_seed(3);
  const at::Tensor x = wide_data({100, 300}, at::kHalf).slice(1, 3, 131).slice(0, 1, 100, 2);
  for (const NamedCast& each : get_casts(x)) {
    const CastSums part = statistics_on_cpu(each);
    CastSums expected = part;
    merge(expected, part);
    const auto cast = CastInMemory::of(each.x, each.cast.codes, each.cast.mode);
    SCOPED_TRACE(to_text(each));
    expect_cast(statistics_on_host_grid<FP16>(each.cast, cast.matrix, part, Order::backward),
                expected, kSumsBound);
  }
}

// ---- errors block by block ----

template <typename Input, typename ScaleFormat, typename X, CodePairs pairs>
void run_errors(const cuda::BlockErrorsArguments& arguments, Order order) {
  const auto run = [&]<BlockDirection direction>() {
    run_grid<Nothing>(2, order, [&](const HostThread& thread, Nothing&) {
      cuda::block_cast_errors<Input, ScaleFormat, X, pairs, direction>(arguments, thread);
    });
  };
  switch (arguments.direction) {
    case BlockDirection::along_rows:
      if constexpr (pairs != CodePairs::down_columns) {
        run.template operator()<BlockDirection::along_rows>();
      }
      return;
    case BlockDirection::down_columns:
      if constexpr (pairs != CodePairs::along_row) {
        run.template operator()<BlockDirection::down_columns>();
      }
      return;
    case BlockDirection::squares:
      if constexpr (pairs == CodePairs::none) {
        run.template operator()<BlockDirection::squares>();
      }
  }
}

void expect_same_block(const BlockErrors& got, const BlockErrors& expected) {
  EXPECT_EQ(got.elements, expected.elements);
  EXPECT_EQ(got.nonzero, expected.nonzero);
  EXPECT_EQ(got.underflows, expected.underflows);
  EXPECT_EQ(got.saturated, expected.saturated);
  if (std::isfinite(expected.squared_error)) {
    EXPECT_NEAR(got.squared_error, expected.squared_error, kSumsBound * expected.squared_error);
  } else {
    EXPECT_TRUE(got.squared_error == expected.squared_error ||
                (std::isnan(got.squared_error) && std::isnan(expected.squared_error)))
        << got.squared_error << " instead of " << expected.squared_error;
  }
}

template <typename X>
void expect_errors(const NamedCast& each, Order order) {
  const at::Tensor expected = ops::block_cast_errors(each.x, each.cast);
  const auto cast = CastInMemory::of(each.x, each.cast.codes, each.cast.mode);
  with_and_without_packs(cast.matrix, [&](const cuda::CastMatrix& matrix) {
    SCOPED_TRACE(fmt::format("{}, in packs {}", to_text(each), matrix.whole));
    const at::Tensor words = at::full_like(expected, -1);
    auto arguments = cuda::block_errors_arguments(cast, each.cast.mode, words);
    arguments.matrix = matrix;
    with_codes(matrix.codes.pairs, each.cast,
               [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
                 run_errors<Input, ScaleFormat, X, pairs>(arguments, order);
               });
    const auto block = [](const at::Tensor& of, std::int64_t i) {
      return from_words<BlockErrors>(
          {of.const_data_ptr<std::int64_t>() + i * kBlockErrorsWords, kBlockErrorsWords});
    };
    for (std::int64_t i = 0; i < expected.numel() / kBlockErrorsWords; ++i) {
      SCOPED_TRACE(fmt::format("block {}, {}", i / expected.size(1), i % expected.size(1)));
      expect_same_block(block(words, i), block(expected, i));
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST(BlockErrorsDevice, every_block_of_every_copy_matches_cpu) {
  for_each_cast([]<typename X>(const NamedCast& each) {
    if (!::testing::Test::HasFailure()) expect_errors<X>(each, Order::shuffled);
  });
}

// ---- two copies ----

template <typename Input, typename ScaleFormat, bool packed>
CopiesDifference difference_on_host_grid(const cuda::CopiesArguments& given, Order order) {
  std::vector<CopiesDifference> parts(
      static_cast<std::size_t>(cuda::copies_grid(given.rows, given.columns)));
  cuda::CopiesArguments arguments = given;
  arguments.parts = parts.data();
  using Shared = MergeShared<CopiesDifference>;
  run_grid<Shared>(
      static_cast<std::int64_t>(parts.size()), order,
      [&](const HostThread& thread, Shared& shared) {
        if (arguments.values != nullptr) {
          cuda::copies_difference<Input, ScaleFormat, packed, true>(arguments, thread, shared);
        } else {
          cuda::copies_difference<Input, ScaleFormat, packed, false>(arguments, thread, shared);
        }
      });
  return merged(parts, CopiesDifference(), order);
}

void expect_difference(const BlockCast& rowwise, const BlockCast& columnwise,
                       std::optional<std::uint16_t> signs = {}) {
  const at::Tensor words = ops::block_copies_difference(rowwise, columnwise, signs);
  const auto expected =
      from_words<CopiesDifference>({words.const_data_ptr<std::int64_t>(), kCopiesDifferenceWords});
  at::Tensor values;
  if (signs) values = ops::without_transform(columnwise, rowwise.codes.codes.size(0), *signs);
  auto copies = cuda::CopiesInMemory::of(rowwise.codes, columnwise.codes, rowwise.mode, values);
  for (const bool whole : {true, false}) {
    if (whole && copies.arguments.columns % 8 != 0) continue;
    copies.arguments.whole = whole;
    with_codes(copies.arguments.first.pairs, rowwise,
               [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
                 const CopiesDifference got =
                     difference_on_host_grid<Input, ScaleFormat, pairs != CodePairs::none>(
                         copies.arguments, Order::shuffled);
                 EXPECT_EQ(got.elements, expected.elements);
                 EXPECT_EQ(got.different, expected.different);
                 if (std::isnan(expected.relative)) {
                   EXPECT_TRUE(std::isnan(got.relative)) << got.relative;
                 } else {
                   EXPECT_NEAR(got.relative, expected.relative, kSumsBound * expected.relative);
                 }
               });
  }
}

TEST(BlockCopiesDevice, differences_of_copies_match_cpu) {
  for (const auto& [rows, columns] : shapes_with_elements(FormatId::bf16)) {
    for (const NamedMatrix& named : block_matrices<BF16>(rows, columns, at::kBFloat16)) {
      const std::vector<NamedCast> casts = get_casts(named.x);
      for (std::size_t i = 0; i < casts.size(); i += 2) {
        SCOPED_TRACE(fmt::format("{}, {}", named.name, to_text(casts[i])));
        expect_difference(casts[i].cast, casts[i + 1].cast);
      }
    }
  }
}

TEST(BlockCopiesDevice, differences_of_a_transformed_copy_match_cpu) {
  constexpr std::uint16_t kSigns = 0xd7e8;
  for (const std::int64_t columns : {136, 129}) {
    for (const NamedMatrix& named : block_matrices<BF16>(48, columns, at::kBFloat16)) {
      SCOPED_TRACE(named.name);
      const auto pair = ops::quantize_nvfp4(named.x, {.hadamard_signs = kSigns}, {});
      expect_difference({pair.rowwise, FormatId::e2m1, ScalingMode::nvfp4},
                        {pair.columnwise, FormatId::e2m1, ScalingMode::nvfp4}, kSigns);
    }
  }
}

}  // namespace
}  // namespace telens::testing
