#include "core/ops/gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include <utility>

#include "core/base/error.h"
#include "core/ops/block_quantize.h"
#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"
#include "core/ops/matmul.h"

namespace telens::ops {
namespace {

at::Tensor gemm_meta(const GemmArguments& arguments) {
  const at::Tensor& a = arguments.a.codes;
  return at::empty({a.size(0), arguments.b.codes.size(0)}, a.options().dtype(arguments.out_dtype));
}

void gemm_accumulate_meta(const GemmAccumulateArguments&) {}

void check_operand(const GemmOperand& operand) {
  if (operand.mode == ScalingMode::tensor) {
    check_one_float("gemm", "scale_inv", operand.scale_inv, operand.codes);
    check_fp8_format("gemm", static_cast<std::int64_t>(operand.format));
  } else {
    check_block_codes("gemm", {operand.codes, operand.scale_inv, operand.tensor_scale},
                      static_cast<std::int64_t>(operand.format),
                      static_cast<std::int64_t>(operand.mode));
    if (scheme(operand.mode).has_tensor_scale() && !operand.tensor_scale.defined()) {
      raise<UsageError>("gemm: an {} operand lacks its tensor_scale", get_name(operand.mode));
    }
  }
}

}  // namespace

bool can_multiply(ScalingMode a, ScalingMode b) {
  if (scheme(a).has_128_blocks() && scheme(b).has_128_blocks()) {
    return a != ScalingMode::block_2d || b != ScalingMode::block_2d;
  }
  return a == b;
}

void check_gemm(const GemmArguments& arguments) {
  const auto& [left, right, bias, out_dtype, split_accumulator] = arguments;
  const at::Tensor& a = left.codes;
  const at::Tensor& b = right.codes;
  if (a.scalar_type() != at::kByte || b.scalar_type() != at::kByte) {
    raise<ShapeError>("gemm: operands have dtypes {} and {}; expected codes (Byte)",
                      c10::toString(a.scalar_type()), c10::toString(b.scalar_type()));
  }
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(1)) {
    raise<ShapeError>("gemm: operands have shapes {} and {}; expected [M, K] and [N, K]",
                      c10::str(a.sizes()), c10::str(b.sizes()));
  }
  if (!can_multiply(left.mode, right.mode)) {
    raise<UsageError>(
        "gemm: operands are scaled by {} and by {}; expected one mode, or 1x128 with "
        "128x128 blocks",
        get_name(left.mode), get_name(right.mode));
  }
  check_operand(left);
  check_operand(right);
  if (out_dtype != at::kBFloat16 && out_dtype != at::kHalf && out_dtype != at::kFloat) {
    raise<ShapeError>("gemm: out_dtype {}; expected BFloat16, Half or Float",
                      c10::toString(out_dtype));
  }
  if (bias.defined() &&
      (bias.dim() != 1 || bias.size(0) != b.size(0) || bias.scalar_type() != out_dtype)) {
    raise<ShapeError>("gemm: bias has shape {} and dtype {}; expected [{}] and {}",
                      c10::str(bias.sizes()), c10::toString(bias.scalar_type()), b.size(0),
                      c10::toString(out_dtype));
  }
}

void check_gemm_accumulate(const GemmAccumulateArguments& arguments) {
  const auto& [a, b, out, split_accumulator] = arguments;
  check_gemm({a, b, or_undefined(std::nullopt), at::kFloat, split_accumulator});
  check_accumulated("gemm_accumulate", a.codes, b.codes, out);
}

at::Tensor gemm(const GemmOperand& a, const GemmOperand& b, const at::Tensor& bias,
                at::ScalarType out_dtype, bool split_accumulator) {
  static const auto handle = find_operator<decltype(gemm_schema<gemm_meta>)>("telens::gemm");
  return handle.call(
      a.codes, a.scale_inv, if_defined(a.tensor_scale), static_cast<std::int64_t>(a.format),
      static_cast<std::int64_t>(a.mode), b.codes, b.scale_inv, if_defined(b.tensor_scale),
      static_cast<std::int64_t>(b.format), static_cast<std::int64_t>(b.mode), if_defined(bias),
      out_dtype, split_accumulator, a.power_of_2_scales && b.power_of_2_scales);
}

void gemm_accumulate(const GemmOperand& a, const GemmOperand& b, const at::Tensor& out,
                     bool split_accumulator) {
  static const auto handle = find_operator<decltype(gemm_accumulate_schema<gemm_accumulate_meta>)>(
      "telens::gemm_accumulate");
  handle.call(a.codes, a.scale_inv, if_defined(a.tensor_scale), static_cast<std::int64_t>(a.format),
              static_cast<std::int64_t>(a.mode), b.codes, b.scale_inv, if_defined(b.tensor_scale),
              static_cast<std::int64_t>(b.format), static_cast<std::int64_t>(b.mode), out,
              split_accumulator, a.power_of_2_scales && b.power_of_2_scales);
}

at::Tensor bias_of_16_bits(const at::Tensor& bias) {
  return bias.defined() && bias.scalar_type() == at::kFloat ? bias.to(at::kBFloat16) : bias;
}

GemmByRows::GemmByRows(const GemmOperand& a, const GemmOperand& b)
    : a_(a), b_(b), one_(at::ones({1}, a.codes.options().dtype(at::kFloat))) {}

GemmOperand GemmByRows::with_ones(const GemmOperand& operand) const {
  return {operand.codes,  operand.scale_inv, one_,
          operand.format, operand.mode,      operand.power_of_2_scales};
}

// [M, 1] or [1, 1] times [1, N] or [1, 1]: there are as many factors as sums only if both operands
// have scales of rows.
at::Tensor GemmByRows::scaled(at::Tensor sums) const {
  const at::Tensor of_rows = a_.tensor_scale.to(at::kDouble).view({-1, 1});
  const at::Tensor of_columns = b_.tensor_scale.to(at::kDouble).view({1, -1});
  return sums.mul_(at::mul(of_rows, of_columns));
}

namespace {

thread_local GemmChoice newest;

std::vector<std::string> no_algorithms(const at::Tensor&) { return {}; }

}  // namespace

void report_gemm_choice(GemmChoice choice) { newest = choice; }
GemmChoice newest_gemm_choice() { return newest; }

std::vector<std::string> gemm_algorithms(const at::Tensor& x) {
  static const auto handle = find_operator<decltype(no_algorithms)>("telens::gemm_algorithms");
  return handle.call(x);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  using namespace telens::ops;
  library.impl("gemm", gemm_schema<gemm_meta>);
  library.impl("gemm_accumulate", gemm_accumulate_schema<gemm_accumulate_meta>);
}

TORCH_LIBRARY_IMPL(telens, CompositeExplicitAutograd, library) {
  library.impl("gemm_algorithms", telens::ops::no_algorithms);
}
