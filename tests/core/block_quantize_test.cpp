// Quantizing in blocks against plain implementations of the definitions in docs/formats.md, on
// every SIMD target of this processor.
#include "core/ops/block_quantize.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "core/formats/philox.h"
#include "core/formats/stochastic_rounding.h"
#include "core/kernels/cpu/simd_target.h"
#include "tests/core/special_values.h"

namespace telens::testing {
namespace {

using ops::BlockCodes;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array kDtypes{at::kBFloat16, at::kHalf, at::kFloat};

struct Reference {
  at::Tensor codes;      // uint8 [rows, columns], one code a byte
  at::Tensor scale_inv;  // as BlockCodes
};

struct Block {
  float stored;       // the scale as FP32 ...
  std::uint8_t code;  // ... or as E8M0 or E4M3
  float factor;       // that the elements are multiplied by
};

using BlockScale = std::function<Block(float amax)>;
using Encode = std::function<std::uint8_t(float scaled, std::int64_t row, std::int64_t column)>;

float magnitude_of_block(const at::Tensor& x, std::int64_t row, std::int64_t column,
                         std::int64_t height, std::int64_t length, bool nan_wins) {
  const auto values = x.accessor<float, 2>();
  float amax = 0.0F;
  for (std::int64_t r = row; r < std::min(row + height, x.size(0)); ++r) {
    for (std::int64_t c = column; c < std::min(column + length, x.size(1)); ++c) {
      const float magnitude = std::fabs(values[r][c]);
      if (std::isnan(magnitude)) {
        if (nan_wins) return magnitude;
      } else {
        amax = std::max(amax, magnitude);
      }
    }
  }
  return amax;
}

struct Layout {
  std::int64_t height;  // a block's
  std::int64_t length;
  bool nan_wins = false;
};

// x: FP32 [rows, columns].
Reference quantize_plainly(const at::Tensor& x, const Layout& layout, at::ScalarType scale_dtype,
                           const BlockScale& get_scale, const Encode& encode_scaled) {
  const std::int64_t rows = (x.size(0) + layout.height - 1) / layout.height;
  const std::int64_t columns = (x.size(1) + layout.length - 1) / layout.length;
  Reference result{at::zeros(x.sizes(), at::kByte), at::zeros({rows, columns}, scale_dtype)};
  const auto values = x.accessor<float, 2>();
  auto codes = result.codes.accessor<std::uint8_t, 2>();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t top = row * layout.height;
      const std::int64_t left = column * layout.length;
      const Block block = get_scale(
          magnitude_of_block(x, top, left, layout.height, layout.length, layout.nan_wins));
      if (scale_dtype == at::kByte) {
        result.scale_inv[row][column] = static_cast<std::int64_t>(block.code);
      } else {
        result.scale_inv[row][column] = block.stored;
      }
      for (std::int64_t r = top; r < std::min(top + layout.height, x.size(0)); ++r) {
        for (std::int64_t c = left; c < std::min(left + layout.length, x.size(1)); ++c) {
          codes[r][c] = encode_scaled(values[r][c] * block.factor, r, c);
        }
      }
    }
  }
  return result;
}

// The smallest power of two under which nothing overflows, by trying all of them in double.
template <typename Format>
Block mxfp8_block(float amax) {
  int exponent = -127;
  while (exponent < 127 &&
         static_cast<double>(amax) > std::ldexp(static_cast<double>(Format::kMax), exponent)) {
    ++exponent;
  }
  return {0.0F, static_cast<std::uint8_t>(exponent + 127), std::ldexp(1.0F, -exponent)};
}

template <typename Format>
std::uint8_t saturating_code(float scaled, std::int64_t, std::int64_t) {
  return encode<Format>(scaled, Saturation::saturating);
}

struct Scaling128 {
  float largest_of_format;
  float largest_of_dtype;  // replaces an infinite scale
  bool power_of_two;
  float epsilon;
};

Block block_128(float amax, const Scaling128& scaling) {
  const auto& [largest, largest_scale, power_of_two, epsilon] = scaling;
  const float size = std::max(amax, epsilon);
  float scale = size == 0.0F || std::isinf(size) ? 1.0F : largest / size;
  if (std::isinf(scale)) scale = largest_scale;
  if (power_of_two) {
    int exponent = 0;
    std::frexp(scale, &exponent);
    scale = std::ldexp(1.0F, exponent - 1);
  }
  return {1.0F / scale, 0, scale};
}

// NVFP4, in the order of its definition. `amax` is that of the finite elements of the tensor.
struct Nvfp4Reference {
  float tensor_scale;
  Reference quantized;
};

Nvfp4Reference nvfp4_plainly(const at::Tensor& x, std::int64_t block_height,
                             const Encode& encode_scaled) {
  const float amax = magnitude_of_block(x, 0, 0, x.size(0), x.size(1), false);
  const float factor = amax == 0.0F || std::isinf(amax)
                           ? 1.0F
                           : std::min(2688.0F / amax, std::numeric_limits<float>::max());
  const float tensor_scale = 1.0F / factor;
  const BlockScale get_scale = [=](float size) {
    const std::uint8_t code = encode<E4M3>(size * (factor * (1.0F / 6.0F)), Saturation::saturating);
    const float inverse = 1.0F / (decode<E4M3>(code) * tensor_scale);
    const float largest = std::numeric_limits<float>::max();
    return Block{0.0F, code, inverse > largest ? largest : inverse};
  };
  return {tensor_scale,
          quantize_plainly(x, {block_height, 16, true}, at::kByte, get_scale, encode_scaled)};
}

at::Tensor unpacked(const at::Tensor& packed, std::int64_t columns) {
  const at::Tensor both = at::stack({packed.bitwise_and(0xf), packed.bitwise_right_shift(4)}, 2);
  return both.reshape({packed.size(0), 2 * packed.size(1)}).narrow(1, 0, columns);
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (at::equal(actual, expected)) return;
  const at::Tensor differs = actual.ne(expected).nonzero();
  const auto row = differs[0][0].item<std::int64_t>();
  const auto column = differs[0][1].item<std::int64_t>();
  FAIL() << fmt::format("{}: {} differ, the first at [{}, {}]: {} for {}", what, differs.size(0),
                        row, column, actual[row][column].item<double>(),
                        expected[row][column].item<double>());
}

void expect_same(const BlockCodes& actual, const Reference& expected, const std::string& what) {
  expect_equal(actual.codes, expected.codes, what + ", codes");
  expect_equal(actual.scale_inv, expected.scale_inv, what + ", scales");
}

// Rows whose scales and elements are hard to round: each block has another difficulty. Column 8 and
// row 4 are so small that scales reach their limits.
at::Tensor difficult(std::int64_t rows, std::int64_t columns) {
  at::Tensor x = at::randn({rows, columns}) * at::exp2(at::randn({rows, columns}) * 6);
  const float nan = std::nanf("");
  const std::vector<float> values{0.0F,   -0.0F,   nan,      kInfinity, -kInfinity, 448.0F,
                                  449.0F, -1e-40F, 57344.0F, 0x1p-126F, 3e38F,      6.0F,
                                  0.25F,  5.0F,    2688.0F,  0x1.cp0F,  0x1p-149F,  -1e-6F};
  std::size_t next = 0;
  for (std::int64_t row = 0; row < rows; row += 3) {
    for (std::int64_t column = row % 7; column < columns; column += 11) {
      x[row][column] = values[next++ % values.size()];
    }
  }
  if (rows > 5) {
    x[4].mul_(1e-40);  // 448 / amax is infinite
    x[5].zero_();
  }
  if (columns > 8) x.select(1, 8).mul_(1e-40);
  return x;
}

const std::vector<std::pair<std::int64_t, std::int64_t>> kShapes{{37, 70},
                                                                 {32, 64},
                                                                 {130, 141},
                                                                 {1, 1},
                                                                 {0, 5},
                                                                 {5, 0},
                                                                 // More than one tile of columns.
                                                                 {6, 1158},
                                                                 {1158, 6}};

class BlockQuantize : public ::testing::TestWithParam<kernels::SimdTarget> {
 private:
  kernels::ScopedSimdTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(OnEveryTarget, BlockQuantize, ::testing::ValuesIn(kernels::simd_targets()),
                         [](const auto& info) { return info.param.name; });

template <typename Format>
void expect_mxfp8(const at::Tensor& x) {
  const std::string what = fmt::format("{} of {}", get_name(Format::kId), c10::str(x.sizes()));
  const at::Tensor values = x.to(at::kFloat);
  const auto [rowwise, columnwise] = ops::quantize_mxfp8(x, Format::kId, {}, {});
  const auto plainly = [&](const at::Tensor& matrix) {
    return quantize_plainly(matrix, {1, 32}, at::kByte, mxfp8_block<Format>,
                            saturating_code<Format>);
  };
  expect_same(rowwise, plainly(values), what);
  expect_same(columnwise, plainly(values.t()), what + ", columnwise");
}

TEST_P(BlockQuantize, gives_mxfp8_by_its_definition_in_both_orientations) {
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : kDtypes) {
      const at::Tensor x = difficult(rows, columns).to(dtype);
      expect_mxfp8<E4M3>(x);
      expect_mxfp8<E5M2>(x);
    }
  }
}

float get_largest(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? BF16::kMax : dtype == at::kHalf ? FP16::kMax : FP32::kMax;
}

template <typename Format>
void expect_128_blocks(const at::Tensor& x, std::int64_t height, bool power_of_two, float epsilon) {
  const auto [rowwise, columnwise] = ops::quantize_fp8_blocks(x, Format::kId,
                                                              {.two_dimensional = height == 128,
                                                               .power_of_2_scales = power_of_two,
                                                               .amax_epsilon = epsilon},
                                                              {});
  const Scaling128 scaling{Format::kMax, get_largest(x.scalar_type()), power_of_two, epsilon};
  const auto plainly = [&](const at::Tensor& matrix) {
    return quantize_plainly(
        matrix, {height, 128}, at::kFloat, [&](float amax) { return block_128(amax, scaling); },
        saturating_code<Format>);
  };
  const std::string what =
      fmt::format("{} in {}x128 of {} {}, epsilon {}, {}", get_name(Format::kId), height,
                  c10::toString(x.scalar_type()), c10::str(x.sizes()), epsilon,
                  power_of_two ? "powers of two" : "any scale");
  const at::Tensor values = x.to(at::kFloat);
  expect_same(rowwise, plainly(values), what);
  expect_same(columnwise, plainly(values.t()), what + ", columnwise");
}

TEST_P(BlockQuantize, gives_128_blocks_by_their_definition_in_both_orientations) {
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : kDtypes) {
      const at::Tensor x = difficult(rows, columns).to(dtype);
      for (const std::int64_t height : {1, 128}) {
        for (const float epsilon : {0.0F, 1e-4F}) {
          expect_128_blocks<E4M3>(x, height, true, epsilon);
          expect_128_blocks<E4M3>(x, height, false, epsilon);
          expect_128_blocks<E5M2>(x, height, false, epsilon);
        }
      }
    }
  }
}

TEST_P(BlockQuantize, gives_nvfp4_by_its_definition_in_both_orientations) {
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : kDtypes) {
      at::Tensor x = difficult(rows, columns).to(dtype);
      for (const bool infinite : {true, false}) {
        if (!infinite) x = x.nan_to_num(std::nanf(""), 7.0, -7.0);
        const at::Tensor values = x.to(at::kFloat);
        const auto [rowwise, columnwise] = ops::quantize_nvfp4(x, {}, {});
        const auto expect = [&](const BlockCodes& actual, const at::Tensor& matrix) {
          const std::string what = fmt::format("{} [{}, {}]", c10::toString(dtype), rows, columns);
          const auto expected = nvfp4_plainly(matrix, 1, saturating_code<E2M1>);
          EXPECT_EQ(actual.tensor_scale.item<float>(), expected.tensor_scale) << what;
          expect_equal(unpacked(actual.codes, matrix.size(1)), expected.quantized.codes, what);
          expect_equal(actual.scale_inv, expected.quantized.scale_inv, what + ", scales");
        };
        expect(rowwise, values);
        expect(columnwise, values.t());
      }
    }
  }
}

TEST_P(BlockQuantize, values_of_codes_are_code_times_scale_in_either_layout) {
  const at::Tensor x = at::randn({48, 80}).to(at::kBFloat16);
  const auto expect_close = [&](const BlockCodes& codes, FormatId format, ScalingMode mode,
                                const at::Tensor& original, double step) {
    const at::Tensor values = ops::dequantize_blocks(codes, format, mode, at::kFloat);
    EXPECT_LE((values - original).abs().max().item<float>(), step) << get_name(mode);
    const BlockCodes copied{codes.codes.contiguous(), codes.scale_inv.contiguous(),
                            codes.tensor_scale};
    EXPECT_TRUE(at::equal(values, ops::dequantize_blocks(copied, format, mode, at::kFloat)));
  };
  const double largest = x.abs().max().item<double>();
  const auto mx = ops::quantize_mxfp8(x, FormatId::e4m3, {}, {});
  expect_close(mx.rowwise, FormatId::e4m3, ScalingMode::mxfp8, x, largest / 16);
  expect_close(mx.columnwise, FormatId::e4m3, ScalingMode::mxfp8, x.t(), largest / 16);
  const auto squares = ops::quantize_fp8_blocks(x, FormatId::e4m3, {.two_dimensional = true}, {});
  expect_close(squares.columnwise, FormatId::e4m3, ScalingMode::block_2d, x.t(), largest / 16);
  const auto fp4 = ops::quantize_nvfp4(x, {}, {});
  expect_close(fp4.rowwise, FormatId::e2m1, ScalingMode::nvfp4, x, largest / 5);
  expect_close(fp4.columnwise, FormatId::e2m1, ScalingMode::nvfp4, x.t(), largest / 5);
}

TEST_P(BlockQuantize, gives_the_same_with_any_number_of_threads_and_for_views) {
  const int threads = at::get_num_threads();
  const at::Tensor x = at::randn({2100, 300}).to(at::kBFloat16);
  at::set_num_threads(1);
  const auto one = ops::quantize_mxfp8(x, FormatId::e4m3, {}, {});
  const auto chance = ops::quantize_nvfp4(x, {.random_state = at::tensor({5L, 7L})}, {});
  at::set_num_threads(4);
  const auto four = ops::quantize_mxfp8(x.t().contiguous().t(), FormatId::e4m3, {}, {});
  const at::Tensor every_second = at::tensor({5L, 1L, 7L, 1L}).slice(0, 0, 4, 2);
  const auto same_chance = ops::quantize_nvfp4(x, {.random_state = every_second}, {});
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.rowwise.codes, four.rowwise.codes));
  EXPECT_TRUE(at::equal(one.columnwise.codes, four.columnwise.codes));
  EXPECT_TRUE(at::equal(one.columnwise.scale_inv, four.columnwise.scale_inv));
  EXPECT_TRUE(at::equal(chance.columnwise.codes, same_chance.columnwise.codes));
}

TEST(BlockQuantizeSquares, share_a_scale_so_that_both_orientations_hold_the_same_values) {
  const at::Tensor x = difficult(70, 45).nan_to_num(0.0, 9.0, -9.0);
  const auto expect = [&](const ops::BlockCodesPair& pair, FormatId format, ScalingMode mode,
                          std::int64_t size) {
    const at::Tensor values =
        ops::dequantize_blocks(pair.rowwise, format, mode, at::kFloat).narrow(1, 0, 45);
    const at::Tensor transposed =
        ops::dequantize_blocks(pair.columnwise, format, mode, at::kFloat).narrow(1, 0, 70);
    EXPECT_TRUE(at::equal(values, transposed.t())) << get_name(mode);
    for (std::int64_t row = 0; row < 70; ++row) {
      EXPECT_TRUE(
          at::equal(pair.rowwise.scale_inv[row], pair.rowwise.scale_inv[row / size * size]));
    }
  };
  expect(ops::quantize_mxfp8(x, FormatId::e4m3, {.two_dimensional = true}, {}), FormatId::e4m3,
         ScalingMode::mxfp8, 32);
  expect(ops::quantize_nvfp4(x, {.two_dimensional = true}, {}), FormatId::e2m1, ScalingMode::nvfp4,
         16);
}

// 32 elements 1, 2, ..., 31 and 700. Up: 700 / 448 = 1.5625 -> scale 2; 700 / 2 = 350, between 320
// and 352 -> 352, 7 / 2 = 3.5, 31 / 2 = 15.5 between 15 and 16 -> the even 16. Floor, as OCP MX has
// it: 2^(floor(log2(700)) - 8) = 2 as well; for 300 the two differ: 300 / 448 -> 1, 2^(8 - 8) = 1;
// for 900: 900 / 448 = 2.009 -> 4, floor 2^(9 - 8) = 2, and 900 / 2 saturates at 448.
TEST(Mxfp8, example_worked_by_hand) {
  at::Tensor x = at::arange(1, 33, at::kFloat).view({1, 32}).clone();
  x[0][31] = 700.0F;
  const auto [rowwise, none] = ops::quantize_mxfp8(x, FormatId::e4m3, {}, {true, false});
  EXPECT_FALSE(none.codes.defined());
  EXPECT_EQ(rowwise.scale_inv.item<int>(), 127 + 1);
  EXPECT_EQ(rowwise.codes[0][31].item<int>(), encode<E4M3>(352.0F, Saturation::saturating));
  EXPECT_EQ(rowwise.codes[0][6].item<int>(), encode<E4M3>(3.5F, Saturation::saturating));
  EXPECT_EQ(rowwise.codes[0][30].item<int>(), encode<E4M3>(16.0F, Saturation::saturating));
  x[0][31] = 900.0F;
  const auto scale = [&](ScaleRounding rounding) {
    return ops::quantize_mxfp8(x, FormatId::e4m3, {.scale_rounding = rounding}, {true, false})
        .rowwise;
  };
  EXPECT_EQ(scale(ScaleRounding::up).scale_inv.item<int>(), 127 + 2);
  EXPECT_EQ(scale(ScaleRounding::floor).scale_inv.item<int>(), 127 + 1);
  EXPECT_EQ(scale(ScaleRounding::floor).codes[0][31].item<int>(), E4M3::kMaxCode);
  EXPECT_EQ(scale(ScaleRounding::nearest).scale_inv.item<int>(), 127 + 1);  // 2.009 is nearer 2
}

// 448 / 3 = 149.33, rounded down to a power of two 128: 3 -> 384, 0.1 -> 12.8, between 12 and 13
// -> 13. Without the rounding: 3 -> 448 and 0.1 -> 14.93 -> 15.
TEST(Fp8Blocks, example_worked_by_hand) {
  at::Tensor x = at::full({1, 128}, 0.1F);
  x[0][7] = -3.0F;
  const auto blocks = [&](bool power_of_two) {
    return ops::quantize_fp8_blocks(x, FormatId::e4m3, {.power_of_2_scales = power_of_two},
                                    {true, false})
        .rowwise;
  };
  const auto code = [](float value) { return encode<E4M3>(value, Saturation::saturating); };
  EXPECT_EQ(blocks(true).scale_inv.item<float>(), 1.0F / 128.0F);
  EXPECT_EQ(blocks(true).codes[0][7].item<int>(), code(-384.0F));
  EXPECT_EQ(blocks(true).codes[0][0].item<int>(), code(13.0F));
  EXPECT_EQ(blocks(false).scale_inv.item<float>(), 1.0F / (448.0F / 3.0F));
  EXPECT_EQ(blocks(false).codes[0][7].item<int>(), code(-448.0F));
  EXPECT_EQ(blocks(false).codes[0][0].item<int>(), code(15.0F));
}

// Two blocks with amax 12 and 3. Tensor factor 448 * 6 / 12 = 224, tensor scale 1 / 224. Block
// scales: 12 * 224 / 6 = 448 and 3 * 224 / 6 = 112, both in E4M3. Factors 224 / 448 = 0.5 and
// 224 / 112 = 2: 12 -> 6, 5 -> 2.5, halfway between 2 and 3 -> 2 (even code); 3 -> 6, -0.8 -> -1.6
// -> -1.5.
TEST(Nvfp4, example_worked_by_hand) {
  at::Tensor x = at::zeros({1, 32});
  x[0][0] = 12.0F;
  x[0][1] = 5.0F;
  x[0][16] = 3.0F;
  x[0][17] = -0.8F;
  const auto [rowwise, none] = ops::quantize_nvfp4(x, {}, {true, false});
  EXPECT_EQ(rowwise.tensor_scale.item<float>(), 1.0F / 224.0F);
  EXPECT_EQ(rowwise.scale_inv[0][0].item<int>(), encode<E4M3>(448.0F, Saturation::saturating));
  EXPECT_EQ(rowwise.scale_inv[0][1].item<int>(), encode<E4M3>(112.0F, Saturation::saturating));
  EXPECT_EQ(rowwise.codes[0][0].item<int>(), 7 | 4 << 4);        // 6, 2
  EXPECT_EQ(rowwise.codes[0][8].item<int>(), 7 | (8 | 3) << 4);  // 6, -1.5
}

// One 1 among zeros, in row 1 of 16, whose sign is +: every row of the result is +-1/4, the sign
// that of H[1][j] = (-1)^(j & 1). In row 3 the random sign is -: the result is negated.
TEST(Hadamard, example_worked_by_hand) {
  at::Tensor x = at::zeros({16, 1}, at::kBFloat16);
  x[1][0] = 1.0F;
  const at::Tensor y = ops::hadamard_transform(x, 0xd7e8);
  for (std::int64_t j = 0; j < 16; ++j) {
    EXPECT_EQ(y[j][0].item<float>(), j % 2 == 0 ? 0.25F : -0.25F);
  }
  x.zero_();
  x[3][0] = 1.0F;
  EXPECT_EQ(ops::hadamard_transform(x, 0xd7e8)[0][0].item<float>(), -0.25F);
  EXPECT_EQ(ops::hadamard_transform(x, 0)[0][0].item<float>(), 0.25F);
}

// Sixteen values of one column, added `distances` apart.
std::array<float, 16> transformed(std::array<float, 16> values,
                                  const std::vector<std::size_t>& distances) {
  for (const std::size_t distance : distances) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if ((i & distance) != 0) continue;
      const float sum = values[i] + values[i + distance];
      values[i + distance] = values[i] - values[i + distance];
      values[i] = sum;
    }
  }
  for (float& value : values) value *= 0.25F;
  return values;
}

TEST(Hadamard, adds_neighbours_1_2_4_and_8_apart_in_this_order) {
  const at::Tensor x = at::randn({16, 70});
  const at::Tensor y = ops::hadamard_transform(x, 0);
  bool order_matters = false;
  for (std::int64_t column = 0; column < x.size(1); ++column) {
    std::array<float, 16> values{};
    for (std::int64_t row = 0; row < 16; ++row) values[row] = x[row][column].item<float>();
    const auto expected = transformed(values, {1, 2, 4, 8});
    for (std::int64_t row = 0; row < 16; ++row) {
      EXPECT_EQ(y[row][column].item<float>(), expected[row]) << row << ", " << column;
    }
    order_matters |= transformed(values, {8, 4, 2, 1}) != expected;
  }
  EXPECT_TRUE(order_matters);
}

TEST(Hadamard, is_its_inverses_inverse_and_keeps_lengths) {
  const at::Tensor x = at::randn({64, 33});
  const at::Tensor y = ops::hadamard_transform(x, 0xd7e8);
  EXPECT_TRUE(at::allclose(ops::hadamard_transform(y, 0xd7e8, true), x, 1e-5, 1e-6));
  EXPECT_NEAR(y.norm().item<double>(), x.norm().item<double>(), 1e-3);
  EXPECT_TRUE(at::allclose(y.t().matmul(y), x.t().matmul(x), 1e-4, 1e-4));
}

TEST(Nvfp4, columnwise_codes_match_the_transformed_tensor) {
  const at::Tensor x = at::randn({48, 40}).to(at::kBFloat16);
  const auto rotated = ops::quantize_nvfp4(x, {.hadamard_signs = 0xd7e8}, {});
  const auto plain = ops::quantize_nvfp4(x, {}, {});
  EXPECT_TRUE(at::equal(rotated.rowwise.codes, plain.rowwise.codes));
  const auto of_rotated =
      ops::quantize_nvfp4(ops::hadamard_transform(x, 0xd7e8), {}, {false, true}).columnwise;
  EXPECT_TRUE(at::equal(rotated.columnwise.codes, of_rotated.codes));
  EXPECT_TRUE(at::equal(rotated.columnwise.tensor_scale, of_rotated.tensor_scale));
  EXPECT_FALSE(at::equal(rotated.columnwise.codes, plain.columnwise.codes));
}

TEST(Nvfp4, makes_the_scales_of_a_part_from_the_amaxes_of_the_whole) {
  at::Tensor x = at::randn({64, 48});
  x.narrow(0, 32, 32).mul_(7);
  const at::Tensor part = x.narrow(0, 0, 32);
  const at::Tensor rotated = ops::hadamard_transform(x, 0xd7e8);
  const at::Tensor amaxes = at::stack({x.abs().max(), rotated.abs().max()});
  const auto whole = ops::quantize_nvfp4(x, {.hadamard_signs = 0xd7e8}, {});
  const auto of_part = ops::quantize_nvfp4(part, {.hadamard_signs = 0xd7e8, .amaxes = amaxes}, {});
  EXPECT_TRUE(at::equal(of_part.rowwise.codes, whole.rowwise.codes.narrow(0, 0, 32)));
  EXPECT_TRUE(at::equal(of_part.columnwise.codes, whole.columnwise.codes.narrow(1, 0, 16)));
  EXPECT_TRUE(at::equal(of_part.columnwise.tensor_scale, whole.columnwise.tensor_scale));
  EXPECT_FALSE(at::equal(of_part.rowwise.codes, ops::quantize_nvfp4(part, {}, {}).rowwise.codes));
}

// Every element has its own word: Philox(counter = (i / 4, 0, orientation, offset), key = seed)[i %
// 4].
TEST(Nvfp4, rounding_by_chance_takes_the_words_of_the_elements) {
  const at::Tensor x = at::randn({32, 48});
  const std::int64_t seed = 0x123456789abcdefL;
  const auto pair = ops::quantize_nvfp4(x, {.random_state = at::tensor({seed, 9L})}, {});
  const auto get_words = [&](std::uint32_t orientation) -> Encode {
    return [=](float scaled, std::int64_t row, std::int64_t column) {
      const auto i =
          static_cast<std::uint32_t>(orientation == 0 ? row * 48 + column : column * 48 + row);
      const PhiloxCounter words = philox4x32({i / 4, 0, orientation, 9}, {0x89abcdef, 0x1234567});
      return encode_e2m1_stochastically(scaled, words[i % 4]);
    };
  };
  expect_equal(unpacked(pair.rowwise.codes, 48), nvfp4_plainly(x, 1, get_words(0)).quantized.codes,
               "rowwise");
  expect_equal(unpacked(pair.columnwise.codes, 32),
               nvfp4_plainly(x.t(), 1, get_words(1)).quantized.codes, "columnwise");
}

TEST(Nvfp4, rounding_by_chance_is_right_on_average) {
  at::Tensor x = at::full({64, 1024}, 0.7F);
  x.select(1, 0).fill_(6.0F);
  double sum = 0.0;
  constexpr int kDraws = 16;
  for (std::int64_t draw = 0; draw < kDraws; ++draw) {
    const auto codes =
        ops::quantize_nvfp4(x, {.random_state = at::tensor({draw, 0L})}, {true, false}).rowwise;
    sum += ops::dequantize_blocks(codes, FormatId::e2m1, ScalingMode::nvfp4, at::kFloat)
               .narrow(1, 1, 15)
               .mean()
               .item<double>();
  }
  // Values 0.5 and 1 with a standard deviation of 0.245; 15,360 of them: 0.002.
  EXPECT_NEAR(sum / kDraws, 0.7, 5 * 0.002);
}

template <typename Call>
std::string get_error(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(BlockQuantizeArguments, that_do_not_fit_are_named) {
  const at::Tensor x = at::zeros({16, 20});
  EXPECT_THAT(get_error([&] { ops::quantize_mxfp8(x[0], FormatId::e4m3, {}, {}); }),
              HasSubstr("shape [20]"));
  EXPECT_THAT(get_error([&] { ops::quantize_mxfp8(x, FormatId::e2m1, {}, {}); }),
              HasSubstr("expected an FP8 format"));
  EXPECT_THAT(get_error([&] { ops::quantize_mxfp6(x, FormatId::e4m3, {}, {}); }),
              HasSubstr("format is 0; expected an MXFP6 format: E3M2 (7) or E2M3 (8)"));
  EXPECT_THAT(
      get_error([&] { ops::quantize_fp8_blocks(x.to(at::kDouble), FormatId::e4m3, {}, {}); }),
      HasSubstr("Double"));
  EXPECT_THAT(get_error([&] { ops::quantize_nvfp4(x.narrow(0, 0, 5), {.hadamard_signs = 1}, {}); }),
              HasSubstr("divisible by 16"));
  EXPECT_THAT(get_error([&] {
                ops::quantize_nvfp4(x, {.two_dimensional = true, .hadamard_signs = 1}, {});
              }),
              HasSubstr("disable one of them"));
  EXPECT_THAT(get_error([&] { ops::quantize_nvfp4(x, {.amaxes = at::ones({3})}, {}); }),
              HasSubstr("amaxes has dtype Float and shape [3] on cpu; expected Float [2] on cpu"));
  const auto quantized = ops::quantize_mxfp8(x, FormatId::e4m3, {}, {}).rowwise;
  EXPECT_THAT(get_error([&] {
                ops::dequantize_blocks({quantized.codes, quantized.scale_inv.t(), {}},
                                       FormatId::e4m3, ScalingMode::mxfp8, at::kFloat);
              }),
              HasSubstr("need Byte [16, 1]"));
}

TEST(BlockQuantizeOnMeta, gives_shapes_and_strides_without_data) {
  const at::Tensor x = at::randn({48, 40}).to(at::kBFloat16);
  const auto expect_alike = [](const BlockCodes& meta, const BlockCodes& real) {
    EXPECT_EQ(meta.codes.sizes(), real.codes.sizes());
    EXPECT_EQ(meta.codes.strides(), real.codes.strides());
    EXPECT_EQ(meta.scale_inv.sizes(), real.scale_inv.sizes());
    EXPECT_EQ(meta.scale_inv.scalar_type(), real.scale_inv.scalar_type());
    EXPECT_EQ(meta.tensor_scale.defined(), real.tensor_scale.defined());
  };
  const auto mx = ops::quantize_mxfp8(x.to(at::kMeta), FormatId::e4m3, {}, {});
  const auto real_mx = ops::quantize_mxfp8(x, FormatId::e4m3, {}, {});
  expect_alike(mx.rowwise, real_mx.rowwise);
  expect_alike(mx.columnwise, real_mx.columnwise);
  const auto fp4 = ops::quantize_nvfp4(x.to(at::kMeta), {}, {});
  const auto real_fp4 = ops::quantize_nvfp4(x, {}, {});
  expect_alike(fp4.rowwise, real_fp4.rowwise);
  expect_alike(fp4.columnwise, real_fp4.columnwise);
  EXPECT_EQ(
      ops::dequantize_blocks(fp4.columnwise, FormatId::e2m1, ScalingMode::nvfp4, at::kHalf)
          .strides(),
      ops::dequantize_blocks(real_fp4.columnwise, FormatId::e2m1, ScalingMode::nvfp4, at::kHalf)
          .strides());
}

}  // namespace
}  // namespace telens::testing
