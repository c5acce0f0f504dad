#include "core/gemm/gemm.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/ops/gemm.h"
#include "core/ops/matmul.h"
#include "core/ops/torch_internals.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {
namespace {

std::atomic<std::uint64_t> quantized_count{0};
std::atomic<std::uint64_t> high_precision_count{0};

void check_pair(const GemmDescription& description) {
  const OperandNames names = get_operands(description.gemm);
  const bool a_quantized = is_quantized(description.a);
  if (a_quantized != is_quantized(description.b)) {
    raise<UsageError>(
        "{}: {} got {} quantized and {} in high precision; both operands of a GEMM must be "
        "quantized, or both in high precision; let the feature that modifies one of them return "
        "the other kind, or modify both",
        description.layer, get_name(description.gemm), get_name(a_quantized ? names.a : names.b),
        get_name(a_quantized ? names.b : names.a));
  }
}

// The random Hadamard transforms of the two operands only cancel each other.
void check_rotations(const GemmDescription& description, const QuantizedTensor& a,
                     const QuantizedTensor& b) {
  using Signs = std::optional<std::uint16_t>;
  const Signs left = description.gemm == Gemm::wgrad ? a.blocks.hadamard_signs : Signs();
  const Signs right = description.gemm == Gemm::fprop ? Signs() : b.blocks.hadamard_signs;
  if (left != right) {
    const OperandNames names = get_operands(description.gemm);
    raise<UsageError>(
        "{}: {} cannot multiply {} ({} random Hadamard transform) by {} ({}); expected the same "
        "transform for both",
        description.layer, get_name(description.gemm), get_name(names.a),
        left ? "with a" : "without", get_name(names.b), right ? "with one" : "without");
  }
}

// The product is zero or empty.
bool is_of_no_tokens(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 || b.numel() == 0;
}

// Returns the result of this thread's last GEMM with the kernel's report.
GemmResult with_choice(at::Tensor output) { return {std::move(output), ops::newest_gemm_choice()}; }

GemmResult multiply(const GemmDescription& description, const QuantizedTensor& a,
                    const QuantizedData& left, const QuantizedTensor& b,
                    const QuantizedData& right) {
  quantized_count.fetch_add(1, std::memory_order_relaxed);
  ops::report_gemm_choice(
      {"the device's quantized GEMM", {}});  // default; the kernel may overwrite it
  const ops::GemmOperand left_operand{left.codes, left.scale_inv, left.tensor_scale,
                                      a.format,   a.mode,         a.power_of_2_scales};
  const ops::GemmOperand right_operand{right.codes, right.scale_inv, right.tensor_scale,
                                       b.format,    b.mode,          b.power_of_2_scales};
  const at::Tensor& sum = description.accumulate_into;
  if (sum.defined()) {
    ops::gemm_accumulate(left_operand, right_operand, sum, description.split_accumulator);
    return with_choice(sum);
  }
  return with_choice(ops::gemm(left_operand, right_operand, description.bias, description.out_dtype,
                               description.split_accumulator));
}

GemmResult multiply_padded(const GemmDescription& description, const QuantizedTensor& a,
                           const QuantizedTensor& b, const TokenPadding& padding) {
  if (description.gemm == Gemm::wgrad) {
    return multiply(description, a, pad_columns(a.columnwise, a.mode, padding.padded), b,
                    pad_columns(b.columnwise, b.mode, padding.padded));
  }
  GemmResult result = multiply(description, a, pad_rows(a.rowwise, a.mode, padding.padded), b,
                               description.gemm == Gemm::fprop ? b.rowwise : b.columnwise);
  result.output = result.output.narrow(0, 0, padding.tokens);
  return result;
}

void check_orientations(const GemmDescription& description, const QuantizedData& left,
                        const QuantizedData& right) {
  if (left.defined() && right.defined()) return;
  const OperandNames names = get_operands(description.gemm);
  raise<UsageError>(
      "{}: {} needs its {} in the orientation that was not quantized or was dropped; keep both "
      "(update_usage, Quantizer::set_usage)",
      description.layer, get_name(description.gemm), get_name(left.defined() ? names.b : names.a));
}

void check_multiplies(const GemmDescription& description, const QuantizedTensor& a,
                      const QuantizedTensor& b) {
  if (ops::can_multiply(a.mode, b.mode) &&
      (a.format != FormatId::e5m2 || b.format != FormatId::e5m2)) {
    return;
  }
  const OperandNames names = get_operands(description.gemm);
  raise<UsageError>(
      "{}: {} cannot multiply {} ({}, {} scaling) by {} ({}, {} scaling); expected one scaling "
      "mode (or 1x128 with 128x128 blocks), and at most one E5M2 operand",
      description.layer, get_name(description.gemm), get_name(names.a), get_name(a.format),
      get_name(a.mode), get_name(names.b), get_name(b.format), get_name(b.mode));
}

// Runs the custom GEMM of the left operand's quantizer.
GemmResult run_own(const GemmDescription& description, const QuantizedTensor& a,
                   const QuantizedTensor& b) {
  if (!a.custom_gemm || !b.custom_gemm) {
    const OperandNames names = get_operands(description.gemm);
    raise<UsageError>(
        "{}: in {}, the {}'s quantizer has a qgemm, but the {}'s does not; qgemm requires that "
        "both quantizers have one",
        description.layer, get_name(description.gemm), get_name(a.custom_gemm ? names.a : names.b),
        get_name(a.custom_gemm ? names.b : names.a));
  }
  quantized_count.fetch_add(1, std::memory_order_relaxed);
  at::Tensor sum = description.accumulate_into;
  const at::Tensor product =
      a.custom_gemm->multiply({.gemm = description.gemm,
                               .a = a,
                               .b = b,
                               .bias = description.bias,
                               .out_dtype = sum.defined() ? at::kFloat : description.out_dtype,
                               .split_accumulator = description.split_accumulator});
  return {sum.defined() ? sum.add_(product) : product, {"the quantizer's own qgemm", {}}};
}

GemmResult run_quantized(const GemmDescription& description, const QuantizedTensor& a,
                         const QuantizedTensor& b) {
  const bool own = a.custom_gemm || b.custom_gemm;
  if (!own) check_multiplies(description, a, b);
  const QuantizedData& left = description.gemm == Gemm::wgrad ? a.columnwise : a.rowwise;
  const QuantizedData& right = description.gemm == Gemm::fprop ? b.rowwise : b.columnwise;
  check_orientations(description, left, right);
  if (!own) check_rotations(description, a, b);
  const at::Tensor& sum = description.accumulate_into;
  if (is_of_no_tokens(left.codes, right.codes)) {
    return {sum.defined() ? sum
                          : at::zeros({left.codes.size(0), right.codes.size(0)},
                                      left.codes.options().dtype(description.out_dtype)),
            {}};
  }
  if (own) return run_own(description, a, b);
  const TokenPadding padding = token_padding(description.gemm, a);
  return padding.needed() ? multiply_padded(description, a, b, padding)
                          : multiply(description, a, left, b, right);
}

std::string_view kernel_in(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "BF16 GEMM";
    case at::kHalf:
      return "FP16 GEMM";
    case at::kFloat:
      return "FP32 GEMM";
    default:
      return "FP64 GEMM";
  }
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

GemmResult run_plain(const GemmDescription& description, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor& sum = description.accumulate_into;
  const bool multiplies = !is_of_no_tokens(a, b);
  if (multiplies) high_precision_count.fetch_add(1, std::memory_order_relaxed);
  if (!multiplies && sum.defined()) return {sum, {}};
  const at::ScalarType dtype = description.operand_dtype.value_or(description.out_dtype);
  ops::report_gemm_choice({kernel_in(dtype), {}});  // default; the kernel may overwrite it
  const at::Tensor left = cast(a, dtype);
  const at::Tensor right = cast(b, dtype);
  const at::Tensor left_rows = description.gemm == Gemm::wgrad ? ops::transposed_view(left) : left;
  const at::Tensor right_rows =
      description.gemm == Gemm::fprop ? right : ops::transposed_view(right);
  if (sum.defined()) {
    ops::matmul_accumulate(left_rows, right_rows, sum);
    return with_choice(sum);
  }
  return with_choice(ops::matmul(left_rows, right_rows, description.bias, description.out_dtype));
}

}  // namespace

OperandNames get_operands(Gemm gemm) {
  switch (gemm) {
    case Gemm::fprop:
      return {TensorName::activation, TensorName::weight};
    case Gemm::dgrad:
      return {TensorName::gradient, TensorName::weight};
    case Gemm::wgrad:
      break;
  }
  return {TensorName::gradient, TensorName::activation};
}

GemmResult run_gemm(const GemmDescription& description) {
  check_pair(description);
  if (const auto* a = std::get_if<QuantizedTensor>(&description.a)) {
    return run_quantized(description, *a, std::get<QuantizedTensor>(description.b));
  }
  return run_plain(description, std::get<at::Tensor>(description.a),
                   std::get<at::Tensor>(description.b));
}

void run_grouped_gemm(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                      at::IntArrayRef rows, const at::Tensor& out) {
  const auto products = std::ranges::count_if(rows, [](std::int64_t each) { return each != 0; });
  high_precision_count.fetch_add(static_cast<std::uint64_t>(products), std::memory_order_relaxed);
  ops::grouped_matmul(a, b, bias, rows, out);
}

GemmCounts gemm_counts() {
  return {quantized_count.load(std::memory_order_relaxed),
          high_precision_count.load(std::memory_order_relaxed)};
}

}  // namespace telens
