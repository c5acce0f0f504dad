// GEMMs emulated in BF16, against the CPU's operator. They run on the CPU with an FP32 product,
// which is exact for BF16 operands, as on tensor cores.
#include "core/kernels/cuda/gemm/gemm_emulation.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"
#include "tests/core/gemm_scales.h"
#include "tests/core/matrix_data.h"
#include "tests/core/modules/same_tensor.h"

namespace telens::testing {
namespace {

using ops::BlockCodes;
using test::same_bits;

struct Operand {
  BlockCodes codes;
  FormatId format;
  ScalingMode mode;

  ops::GemmOperand view() const {
    return {codes.codes, codes.scale_inv, codes.tensor_scale, format, mode};
  }
  at::Tensor values() const {
    if (mode == ScalingMode::tensor) {
      return ops::decode_fp8(codes.codes, format, at::kFloat).to(at::kDouble) *
             codes.scale_inv.item<double>();
    }
    return ops::dequantize_blocks(codes, format, mode, at::kFloat).to(at::kDouble);
  }
};

// How an operand is quantized.
struct Way {
  std::string name;
  ScalingMode mode;
  FormatId format = FormatId::e4m3;
  bool power_of_2_scales = true;
};

// Quantizes x [rows, K]: either x itself, or x^T in the columnwise orientation, which gives the
// same matrix with codes and scales as transposed views.
Operand quantized(const at::Tensor& x, const Way& way, bool columnwise) {
  const at::Tensor source = columnwise ? x.t().contiguous() : x;
  const auto pick = [&](const ops::BlockCodesPair& pair) {
    return columnwise ? pair.columnwise : pair.rowwise;
  };
  const ops::Orientations asked{!columnwise, columnwise};
  switch (way.mode) {
    case ScalingMode::tensor: {
      const at::Tensor codes = ops::quantize_fp8(x, at::full({1}, 3.7), {}, way.format);
      return {{columnwise ? codes.t().contiguous().t() : codes, at::full({1}, 1 / 3.7), {}},
              way.format,
              way.mode};
    }
    case ScalingMode::mxfp8:
      return {pick(ops::quantize_mxfp8(source, way.format, {}, asked)), way.format, way.mode};
    case ScalingMode::block_1d:
    case ScalingMode::block_2d:
      return {pick(ops::quantize_fp8_blocks(source, way.format,
                                            {.two_dimensional = way.mode == ScalingMode::block_2d,
                                             .power_of_2_scales = way.power_of_2_scales},
                                            asked)),
              way.format, way.mode};
    default:
      break;
  }
  return {pick(ops::quantize_nvfp4(source, {}, asked)), FormatId::e2m1, way.mode};
}

at::Tensor fp32_product(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.scalar_type(), at::kBFloat16);
  EXPECT_EQ(b.scalar_type(), at::kBFloat16);
  return at::mm(a.to(at::kFloat), b.to(at::kFloat).t());
}

at::Tensor emulated(const Operand& a, const Operand& b, const at::Tensor& bias = {},
                    at::ScalarType dtype = at::kFloat) {
  return cuda::with_bias(cuda::emulated_sums(a.view(), b.view(), fp32_product),
                         ops::bias_of_16_bits(bias), dtype);
}

at::Tensor of_the_cpu(const Operand& a, const Operand& b, const at::Tensor& bias = {},
                      at::ScalarType dtype = at::kFloat) {
  return ops::gemm(a.view(), b.view(), bias, dtype);
}

struct Pair {
  Way a, b;
};
const Way kMxfp8{"MXFP8", ScalingMode::mxfp8};
const Way kMxfp8OfE5m2{"MXFP8 of E5M2", ScalingMode::mxfp8, FormatId::e5m2};
const Way kRows{"1x128", ScalingMode::block_1d};
const Way kSquares{"128x128", ScalingMode::block_2d};
const Way kAnyRows{"1x128, any scale", ScalingMode::block_1d, FormatId::e5m2, false};
const Way kAnySquares{"128x128, any scale", ScalingMode::block_2d, FormatId::e4m3, false};
const Way kNvfp4{"NVFP4", ScalingMode::nvfp4};
const Way kTensor{"tensor", ScalingMode::tensor};
const Way kTensorOfE5m2{"tensor of E5M2", ScalingMode::tensor, FormatId::e5m2};

const std::vector<Pair> kPairs{
    {kTensor, kTensorOfE5m2}, {kMxfp8, kMxfp8},  {kMxfp8OfE5m2, kMxfp8},  {kRows, kRows},
    {kRows, kSquares},        {kSquares, kRows}, {kAnyRows, kAnySquares}, {kAnySquares, kAnyRows},
    {kAnyRows, kRows},        {kNvfp4, kNvfp4}};

double get_epsilon(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 0x1p-8;
  return dtype == at::kHalf ? 0x1p-11 : 0x1p-24;
}

// |difference| <= (K + 3) x 2^-23 x sum |a||b| + the output's rounding. K roundings in the sum, 3
// of scales and bias.
void expect_within_bound(const at::Tensor& out, const Operand& a, const Operand& b,
                         const at::Tensor& bias) {
  const at::Tensor left = a.values(), right = b.values();
  at::Tensor exact = left.mm(right.t());
  at::Tensor magnitude = left.abs().mm(right.abs().t());
  if (bias.defined()) {
    const at::Tensor added = ops::bias_of_16_bits(bias).to(at::kDouble);
    exact = exact + added;
    magnitude = magnitude + added.abs();
  }
  const at::Tensor bound = magnitude * (static_cast<double>(left.size(1) + 3) * 0x1p-23) +
                           exact.abs() * get_epsilon(out.scalar_type());
  const at::Tensor error = (out.to(at::kDouble) - exact).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << (error - bound).max().item<double>() << " over the bound";
}

struct Shape {
  std::int64_t m, n, k;
};
constexpr Shape kShapes[] = {{64, 48, 256}, {33, 130, 272}, {1, 2, 16}, {144, 16, 640}};

TEST(GemmEmulation, error_is_within_bound_for_all_formats_and_shapes) {
  at::manual_seed(1);
  for (const Pair& pair : kPairs) {
    for (const Shape& shape : kShapes) {
      for (const bool columnwise : {false, true}) {
        SCOPED_TRACE(fmt::format("{} by {}, {} x {} x {}, columnwise {}", pair.a.name, pair.b.name,
                                 shape.m, shape.n, shape.k, columnwise));
        const Operand a = quantized(at::randn({shape.m, shape.k}), pair.a, columnwise);
        const Operand b = quantized(at::randn({shape.n, shape.k}), pair.b, !columnwise);
        expect_within_bound(emulated(a, b), a, b, {});
        for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
          const at::Tensor bias = at::randn({shape.n}).to(dtype);
          const at::Tensor out = emulated(a, b, bias, dtype);
          EXPECT_EQ(out.scalar_type(), dtype);
          expect_within_bound(out, a, b, bias);
        }
      }
    }
  }
}

// The CPU's operator multiplies FP32 values and sums in the same order, and moving powers of two
// out of the rows and back changes no bit. It multiplies 128-blocks with power-of-two scales as one
// sum, and others in blocks of K, as the emulation does. A scale of a whole tensor is applied at
// another point, so here it is a power of two, which rounds nothing.
TEST(GemmEmulation, matches_cpu_bits_for_the_same_summation_order) {
  at::manual_seed(2);
  for (const Pair& pair : std::vector<Pair>{{kTensor, kTensorOfE5m2},
                                            {kMxfp8, kMxfp8},
                                            {kMxfp8OfE5m2, kMxfp8},
                                            {kAnyRows, kAnySquares},
                                            {kAnySquares, kAnyRows},
                                            {kNvfp4, kNvfp4}}) {
    SCOPED_TRACE(pair.a.name + " by " + pair.b.name);
    const Operand a = quantized(wide_data({96, 256}, at::kFloat), pair.a, false);
    const Operand b = quantized(wide_data({64, 256}, at::kFloat), pair.b, false);
    for (const Operand* operand : {&a, &b}) {
      if (operand->mode == ScalingMode::tensor) operand->codes.scale_inv.fill_(0.25);
      if (operand->mode == ScalingMode::nvfp4) operand->codes.tensor_scale.fill_(0.5);
    }
    EXPECT_TRUE(same_bits(emulated(a, b), of_the_cpu(a, b)));
  }
}

at::Tensor filled(double value) { return at::full({32, 256}, value, at::kFloat); }

// Products for which a plain decode to BF16, or an intermediate result in FP32, would leave its
// range.
TEST(GemmEmulation, keeps_the_ends_of_the_range_of_exponents) {
  for (const Way& way : {kMxfp8, kRows, kSquares, kAnyRows}) {
    const Way other = way.mode == ScalingMode::block_2d ? kRows : way;
    for (const auto& [left, right] : {std::pair{-64, -66},
                                      {-100, -25},
                                      {-126, 100},
                                      {-140, 120},
                                      {120, -120},
                                      {100, -149},
                                      {-149, 127},
                                      {60, 59}}) {
      SCOPED_TRACE(fmt::format("{}: 2^{} by 1.5 x 2^{}", way.name, left, right));
      const Operand a = quantized(filled(std::ldexp(1.0, left)), way, false);
      const Operand b = quantized(filled(std::ldexp(1.5, right)), other, false);
      const at::Tensor exact = a.values().mm(b.values().t());
      const at::Tensor error = (emulated(a, b).to(at::kDouble) - exact).abs();
      EXPECT_TRUE((error <= exact.abs() * 0x1p-14 + 0x1p-149).all().item<bool>())
          << error.max().item<double>() << " of " << exact[0][0].item<double>();
    }
  }
}

// The exponent that is taken out of a row is that of its largest scale: with its smallest scale
// these sums would overflow.
TEST(GemmEmulation, multiplies_rows_with_very_different_block_scales) {
  at::Tensor x = filled(std::ldexp(1.0, -60));
  x.slice(1, 0, 128).fill_(std::ldexp(1.0, 60));
  for (const Way& way : {kMxfp8, kRows, kAnyRows}) {
    SCOPED_TRACE(way.name);
    const Operand a = quantized(x, way, false);
    expect_within_bound(emulated(a, a), a, a, {});
  }
}

// Values far below a row's largest one are lost when its exponent is taken out: an error of at most
// K x 2^-100 of the largest scales, which is one step here.
TEST(GemmEmulation, loses_only_row_elements_beyond_the_bound) {
  at::Tensor x = filled(0);
  x.slice(1, 0, 32).fill_(std::ldexp(1.0, 100));
  for (const int exponent : {-10, -16, -60}) {
    x.slice(1, 32, 64).fill_(std::ldexp(1.0, exponent));
    const Operand a = quantized(x, kMxfp8, false);
    at::Tensor only_small = filled(0);
    only_small.slice(1, 32, 64).fill_(1.0);
    const Operand b = quantized(only_small, kMxfp8, false);
    const double found = emulated(a, b)[0][0].item<double>();
    const double largest_scales = std::ldexp(1.0, 100 - 8) * std::ldexp(1.0, -8);
    EXPECT_NEAR(found, std::ldexp(32.0, exponent), 256 * 0x1p-100 * largest_scales) << exponent;
    if (exponent >= -16) {
      EXPECT_EQ(found, std::ldexp(32.0, exponent));
    }
  }
}

TEST(GemmEmulation, a_nan_makes_its_row_and_no_other_nan) {
  for (const Way& way : {kMxfp8, kRows, kAnyRows, kNvfp4, kTensor}) {
    SCOPED_TRACE(way.name);
    at::Tensor x = at::ones({32, 256});
    x[3][7] = std::nan("");
    const Operand a = quantized(x, way, false);
    const Operand b = quantized(at::ones({16, 256}), way, false);
    const at::Tensor nans = emulated(a, b).isnan();
    EXPECT_TRUE(nans[3].all().item<bool>());
    EXPECT_EQ(nans.sum().item<std::int64_t>(), 16);
  }
  Operand a = quantized(at::ones({32, 256}), kMxfp8, false);
  a.codes.scale_inv[3][1] = 255;  // NaN, of a block
  const at::Tensor nans = emulated(a, quantized(at::ones({16, 256}), kMxfp8, false)).isnan();
  EXPECT_TRUE(nans[3].all().item<bool>());
  EXPECT_EQ(nans.sum().item<std::int64_t>(), 16);
}

TEST(GemmEmulation, zeros_and_infinities_match_cpu) {
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(pair.a.name + " by " + pair.b.name);
    const Operand zeros = quantized(filled(0), pair.a, false);
    const Operand b = quantized(at::randn({16, 256}), pair.b, false);
    EXPECT_TRUE(same_bits(emulated(zeros, b), at::zeros({32, 16})));
  }
  const Operand large = quantized(filled(std::ldexp(1.0, 120)), kMxfp8, false);
  EXPECT_TRUE(same_bits(emulated(large, large), of_the_cpu(large, large)));
  EXPECT_TRUE(emulated(large, large).isinf().all().item<bool>());
}

TEST(GemmEmulation, product_in_fp32_range_is_right_for_extreme_scales) {
  at::manual_seed(33);
  expect_products_in_double([](const ScaledOperand& a, const ScaledOperand& b) {
    return cuda::emulated_sums(a.view(), b.view(), fp32_product);
  });
}

// Counts the operators of LibTorch that this thread calls during its lifetime.
class CalledOperators {
 public:
  CalledOperators() {
    names_.clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          names_.emplace_back(call.name());
          return nullptr;
        }));
  }
  ~CalledOperators() { at::removeCallback(handle_); }
  CalledOperators(const CalledOperators&) = delete;
  CalledOperators& operator=(const CalledOperators&) = delete;

  // The operators that compute, each of which would be a kernel launch on a GPU.
  static std::vector<std::string> arithmetic() {
    static const std::set<std::string> kArithmetic{
        "aten::abs", "aten::add", "aten::add_", "aten::amax", "aten::div",   "aten::div_",
        "aten::mul", "aten::neg", "aten::mul_", "aten::pow",  "aten::where", "aten::sub"};
    std::vector<std::string> found;
    std::ranges::copy_if(names_, std::back_inserter(found),
                         [&](const std::string& name) { return kArithmetic.contains(name); });
    return found;
  }

 private:
  static inline thread_local std::vector<std::string> names_;
  at::CallbackHandle handle_;
};

TEST(GemmEmulation, applies_the_scales_of_two_tensors_in_one_pass_over_the_sums) {
  for (const Pair& pair : {Pair{kTensor, kTensorOfE5m2}, Pair{kNvfp4, kNvfp4}}) {
    const Operand a = quantized(at::randn({32, 64}), pair.a, false);
    const Operand b = quantized(at::randn({16, 64}), pair.b, false);
    const CalledOperators called;
    emulated(a, b);
    EXPECT_EQ(called.arithmetic(), (std::vector<std::string>{"aten::mul", "aten::mul_"}))
        << pair.a.name << ": the scales' product, and that with the sums";
  }
}

TEST(GemmEmulation, zeros_stay_zeros_under_scales_whose_product_overflows) {
  for (const Way& way : {kTensor, kNvfp4}) {
    Operand zeros = quantized(filled(0), way, false);
    Operand b = quantized(at::randn({16, 256}), way, false);
    for (Operand* operand : {&zeros, &b}) {
      (way.mode == ScalingMode::nvfp4 ? operand->codes.tensor_scale : operand->codes.scale_inv)
          .fill_(0x1p100);
    }
    EXPECT_TRUE(same_bits(emulated(zeros, b), at::zeros({32, 16}))) << way.name;
  }
}

TEST(GemmEmulation, rounds_a_sum_with_its_bias_once) {
  // 257 is between two BF16 values. Rounding it to 256 before the bias is added would change the
  // sum.
  at::Tensor x = at::ones({16, 256});
  x.slice(1, 0, 1).fill_(2);
  const Operand a = quantized(x, kMxfp8, false);
  const Operand ones = quantized(at::ones({16, 256}), kMxfp8, false);
  const at::Tensor bias = at::full({16}, 0.75, at::kBFloat16);
  EXPECT_EQ(emulated(a, ones, bias, at::kBFloat16)[0][0].item<double>(), 258);
}

}  // namespace
}  // namespace telens::testing
