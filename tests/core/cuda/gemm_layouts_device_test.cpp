// The kernels that bring operands into the layout of cuBLASLt, run on the host thread by thread:
// scales in tiles, padded scales, transposed codes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/formats/convert.h"
#include "core/formats/scheme.h"
#include "core/kernels/cuda/gemm/scale_layouts.cuh"
#include "core/kernels/cuda/quantize/quantize_transpose.cuh"
#include "core/ops/block_quantize.h"
#include "tests/core/cuda/block_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

struct Nothing {};

template <typename Scale>
cuda::ScaleMatrix<Scale> as_matrix(const at::Tensor& scales) {
  return {scales.const_data_ptr<Scale>(), scales.size(0), scales.size(1), scales.stride(0),
          scales.stride(1)};
}

// Without zeros, so that padding differs from every scale.
at::Tensor some_bytes(at::IntArrayRef sizes) { return at::randint(1, 256, sizes, at::kByte); }

// The offset of the scale of (outer, inner) by cuBLASLt's documentation: the tile, then the place
// in it.
std::int64_t documented_offset(std::int64_t outer, std::int64_t inner, std::int64_t blocks) {
  const std::int64_t padded_blocks = (blocks + 3) / 4 * 4;
  const std::int64_t tile = (inner / 4 * 4 + outer / 128 * padded_blocks) * 128;
  return tile + outer % 128 % 32 * 16 + outer % 128 / 32 * 4 + inner % 4;
}

// For each size: a whole tile, one more and one less.
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 7> kScaleShapes{
    {{128, 4}, {256, 8}, {129, 5}, {127, 3}, {1, 1}, {33, 130}, {300, 2}}};

TEST(ScaleLayouts, one_byte_scales_are_tiled_as_documented) {
  at::manual_seed(1);
  for (const auto& [lines, blocks] : kScaleShapes) {
    for (const Order order : kOrders) {
      for (const bool columnwise : {false, true}) {
        const at::Tensor scales =
            columnwise ? some_bytes({blocks, lines}).t() : some_bytes({lines, blocks});
        const at::Tensor like =
            at::empty({cuda::count_scale_tiles(lines, blocks), cuda::kScaleTileBytes}, at::kByte);
        const Guarded tiles(like);
        run_grid<Nothing>(3, order, [&](const HostThread& thread, Nothing&) {
          cuda::tile_scales(
              {as_matrix<std::uint8_t>(scales), tiles.tensor().mutable_data_ptr<std::uint8_t>()},
              thread);
        });
        const at::Tensor expected = at::zeros_like(like);
        for (std::int64_t outer = 0; outer < lines; ++outer) {
          for (std::int64_t inner = 0; inner < blocks; ++inner) {
            expected.view({-1})[documented_offset(outer, inner, blocks)] = scales[outer][inner];
          }
        }
        expect_same_result(tiles, expected, fmt::format("{} x {}", lines, blocks));
      }
    }
  }
}

// Checks the documentation's other formula, from the offset in a tile to the scale, on examples.
TEST(ScaleLayouts, tile_begins_with_scales_of_lines_0_32_64_and_96) {
  const at::Tensor scales = at::arange(128, at::kByte).view({128, 1}).repeat({1, 4});
  at::Tensor tile = at::empty({cuda::kScaleTileBytes}, at::kByte);
  run_grid<Nothing>(1, Order::forward, [&](const HostThread& thread, Nothing&) {
    cuda::tile_scales({as_matrix<std::uint8_t>(scales), tile.mutable_data_ptr<std::uint8_t>()},
                      thread);
  });
  for (std::int64_t offset = 0; offset < cuda::kScaleTileBytes; ++offset) {
    EXPECT_EQ(tile[offset].item<std::int64_t>(), offset % 16 / 4 * 32 + offset / 16) << offset;
  }
}

at::Tensor expanded(const at::Tensor& scales, std::int64_t height, std::int64_t lines,
                    std::int64_t blocks, Order order, std::int64_t grid = 3) {
  const at::Tensor like =
      at::empty({cuda::count_scale_tiles(lines, blocks), cuda::kScaleTileBytes}, at::kByte);
  const Guarded tiles(like);
  run_grid<Nothing>(grid, order, [&](const HostThread& thread, Nothing&) {
    cuda::expand_scales({as_matrix<float>(scales), height, lines, blocks,
                         tiles.tensor().mutable_data_ptr<std::uint8_t>()},
                        thread);
  });
  EXPECT_TRUE(tiles.margins_are_untouched());
  return tiles.tensor().clone();
}

// Blocks of 32 along K; the last 128-block is complete or partial.
TEST(ScaleLayouts, scale_of_a_128_block_expands_to_its_mxfp8_blocks) {
  at::manual_seed(5);
  for (const auto& [lines, blocks] :
       {std::pair{128, 4}, {144, 20}, {272, 12}, {48, 9}, {1, 1}, {300, 6}, {130, 35}}) {
    for (const std::int64_t height : {1, 128}) {
      for (const bool columnwise : {false, true}) {
        const std::int64_t down = (lines + height - 1) / height, across = (blocks + 3) / 4;
        const at::Tensor codes = at::randint(0, 255, {down, across}, at::kInt);
        const at::Tensor wide = at::pow(2.0, codes.to(at::kDouble) - 127).to(at::kFloat);
        const at::Tensor scales = columnwise ? wide.t().contiguous().t() : wide;
        at::Tensor expected =
            at::zeros({cuda::count_scale_tiles(lines, blocks) * cuda::kScaleTileBytes}, at::kByte);
        for (std::int64_t outer = 0; outer < lines; ++outer) {
          for (std::int64_t inner = 0; inner < blocks; ++inner) {
            expected[documented_offset(outer, inner, blocks)] = codes[outer / height][inner / 4];
          }
        }
        for (const Order order : kOrders) {
          EXPECT_TRUE(
              at::equal(expanded(scales, height, lines, blocks, order).view({-1}), expected))
              << lines << " x " << blocks << ", height " << height << ", columnwise " << columnwise;
        }
      }
    }
  }
}

TEST(ScaleLayouts, powers_of_two_keep_their_values_as_e8m0_and_all_else_is_nan) {
  const auto get_code = [](float scale) {
    return expanded(at::full({1, 1}, scale), 1, 1, 1, Order::forward, 1)[0][0].item<int>();
  };
  for (int exponent = -127; exponent <= 127; ++exponent) {
    const int code = get_code(std::ldexp(1.0F, exponent));
    EXPECT_EQ(decode<E8M0>(static_cast<std::uint8_t>(code)), std::ldexp(1.0F, exponent));
  }
  for (const float scale :
       {0.0F, -0.0F, 3.0F, 1.5F, -1.0F, -2.0F, 0x1.000002p0F, 0x1.fffffep127F, 0x1p-128F, 0x1p-149F,
        0x1.8p-127F, std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(get_code(scale), E8M0::kNanCode) << scale;
  }
}

// Compares values: a 128-block with a power-of-two scale equals four MXFP8 blocks with this scale.
TEST(ScaleLayouts, expanded_scales_make_mxfp8_tensors_of_the_same_values) {
  at::manual_seed(6);
  for (const bool squares : {false, true}) {
    for (const bool columnwise : {false, true}) {
      const ops::BlockCodesPair pair = ops::quantize_fp8_blocks(
          wide_data({160, 288}, at::kFloat), FormatId::e4m3,
          {.two_dimensional = squares, .power_of_2_scales = true}, {true, true});
      const ops::BlockCodes& blocks = columnwise ? pair.columnwise : pair.rowwise;
      const ScalingMode mode = squares ? ScalingMode::block_2d : ScalingMode::block_1d;
      const std::int64_t lines = blocks.codes.size(0), across = blocks.codes.size(1) / 32;
      const at::Tensor tiles =
          expanded(blocks.scale_inv, block_height(mode), lines, across, Order::shuffled).view({-1});
      at::Tensor scales = at::empty({lines, across}, at::kByte);
      for (std::int64_t line = 0; line < lines; ++line) {
        for (std::int64_t block = 0; block < across; ++block) {
          scales[line][block] = tiles[documented_offset(line, block, across)];
        }
      }
      EXPECT_TRUE(at::equal(ops::dequantize_blocks({blocks.codes, scales, {}}, FormatId::e4m3,
                                                   ScalingMode::mxfp8, at::kFloat),
                            ops::dequantize_blocks(blocks, FormatId::e4m3, mode, at::kFloat)));
    }
  }
}

TEST(ScaleLayouts, rows_of_fp32_scales_are_filled_with_zeros) {
  at::manual_seed(2);
  for (const auto& [lines, blocks] : kScaleShapes) {
    for (const std::int64_t multiple : {std::int64_t{1}, cuda::kSquareScalesMultiple}) {
      const at::Tensor scales = at::rand({blocks, lines}).t() + 1;
      const std::int64_t width = (blocks + multiple - 1) / multiple * multiple;
      const at::Tensor expected = at::constant_pad_nd(scales, {0, width - blocks}, 0).contiguous();
      const Guarded out(expected);
      run_grid<Nothing>(2, Order::shuffled, [&](const HostThread& thread, Nothing&) {
        cuda::pad_scales({as_matrix<float>(scales), width, out.tensor().mutable_data_ptr<float>()},
                         thread);
      });
      expect_same_result(out, expected, fmt::format("{} x {} to {}", lines, blocks, width));
    }
  }
}

void expect_turned(const at::Tensor& in_memory, Order order) {
  const at::Tensor expected = in_memory.t().contiguous();
  const Guarded out(expected);
  run_grid<cuda::TransposeTile>(
      2, order, [&](const HostThread& thread, cuda::TransposeTile& shared) {
        cuda::transpose_codes({in_memory.const_data_ptr<std::uint8_t>(), in_memory.size(0),
                               in_memory.size(1), out.tensor().mutable_data_ptr<std::uint8_t>()},
                              thread, shared);
      });
  expect_same_result(out, expected, c10::str(in_memory.sizes()));
}

TEST(TransposeCodes, every_byte_comes_to_its_place) {
  at::manual_seed(3);
  for (const Order order : kOrders) {
    for (const auto& [rows, columns] :
         {std::pair(128, 128), std::pair(16, 16), std::pair(144, 272), std::pair(256, 16)}) {
      expect_turned(some_bytes({rows, columns}), order);
    }
  }
}

// The two codes of a byte are neighbors in a column of the columnwise copy, and in a row of its
// transpose: the bytes are the same.
TEST(TransposeCodes, nvfp4_keeps_pairs_together) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({64, 48});
  const ops::BlockCodes columnwise = ops::quantize_nvfp4(x, {}, {true, true}).columnwise;
  ASSERT_TRUE(columnwise.codes.t().is_contiguous());
  ops::BlockCodes turned = columnwise;
  turned.codes = at::empty(columnwise.codes.sizes(), at::kByte);
  const at::Tensor in_memory = columnwise.codes.t();
  run_grid<cuda::TransposeTile>(
      1, Order::forward, [&](const HostThread& thread, cuda::TransposeTile& shared) {
        cuda::transpose_codes({in_memory.const_data_ptr<std::uint8_t>(), in_memory.size(0),
                               in_memory.size(1), turned.codes.mutable_data_ptr<std::uint8_t>()},
                              thread, shared);
      });
  const auto values = [](const ops::BlockCodes& codes) {
    return ops::dequantize_blocks(codes, FormatId::e2m1, ScalingMode::nvfp4, at::kFloat);
  };
  EXPECT_TRUE(at::equal(values(turned), values(columnwise)));
  EXPECT_EQ(values(turned).sizes(), at::IntArrayRef({48, 64}));
}

}  // namespace
}  // namespace telens::testing
