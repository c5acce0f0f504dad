// The quantized GEMM on CUDA: cuBLASLt's FP8 product where the card and the shapes have it, else
// exact products of BF16 operands, as on the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "core/kernels/cuda/cublaslt.h"
#include "core/kernels/cuda/device.h"
#include "core/ops/gemm.h"
#include "core/ops/gemm_checks.h"
#include "core/ops/gemm_choice.h"
#include "core/ops/quantize.h"

namespace telens::cuda {
namespace {

using ops::GemmOperand;

// What FP8 products ask of every dimension: rows of 16 bytes.
constexpr std::int64_t kFp8Multiple = 16;

cudaDataType_t type_of(FormatId format) {
  return format == FormatId::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

cudaDataType_t type_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return CUDA_R_16BF;
  return dtype == at::kHalf ? CUDA_R_16F : CUDA_R_32F;
}

bool has_fp8_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.size(0) % kFp8Multiple == 0 && b.size(0) % kFp8Multiple == 0 &&
         a.size(1) % kFp8Multiple == 0;
}

// A view that starts between two packs is copied to where 16 bytes can be read at once.
at::Tensor dense_and_aligned(const at::Tensor& codes) {
  const at::Tensor dense = codes.contiguous();
  return is_aligned(dense.const_data_ptr(), kFp8Multiple) ? dense : dense.clone();
}

std::optional<at::Tensor> dense_bias(const std::optional<at::Tensor>& bias) {
  if (!bias || !bias->defined()) return std::nullopt;
  return ops::bias_of_16_bits(*bias).contiguous();
}

// Runs the product on the tensors' device, with a workspace from the allocator's cache, which keeps
// it for the stream that uses it.
void run(const DeviceScope& scope, const at::Tensor& out, const LtGemm& gemm) {
  const at::Tensor workspace =
      at::empty({static_cast<std::int64_t>(kLtWorkspaceBytes)}, out.options().dtype(at::kByte));
  run_lt_gemm(gemm, out.device().index(), workspace.mutable_data_ptr(), scope.context().stream);
}

at::Tensor fp8_gemm(const DeviceScope& scope, const GemmOperand& a, const GemmOperand& b,
                    const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  const at::Tensor left = dense_and_aligned(a.codes);
  const at::Tensor right = dense_and_aligned(b.codes);
  at::Tensor out = at::empty({left.size(0), right.size(0)}, left.options().dtype(out_dtype));
  LtGemm gemm{.m = left.size(0),
              .n = right.size(0),
              .k = left.size(1),
              .a = {left.const_data_ptr(), type_of(a.format), {a.scale_inv.const_data_ptr()}},
              .b = {right.const_data_ptr(), type_of(b.format), {b.scale_inv.const_data_ptr()}},
              .out = out.mutable_data_ptr(),
              .out_type = type_of(out_dtype)};
  if (bias) {
    gemm.bias = bias->const_data_ptr();
    gemm.bias_type = type_of(bias->scalar_type());
  }
  run(scope, out, gemm);
  return out;
}

// The operands' codes are exact in BF16, their products in the accumulator; the scales are applied
// to the FP32 sums, and the result is rounded once.
at::Tensor emulated_gemm(const DeviceScope& scope, const GemmOperand& a, const GemmOperand& b,
                         const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  const at::Tensor left = ops::decode_fp8(a.codes, a.format, at::kBFloat16).contiguous();
  const at::Tensor right = ops::decode_fp8(b.codes, b.format, at::kBFloat16).contiguous();
  at::Tensor sums = at::empty({left.size(0), right.size(0)}, left.options().dtype(at::kFloat));
  run(scope, sums,
      {.m = left.size(0),
       .n = right.size(0),
       .k = left.size(1),
       .a = {left.const_data_ptr(), CUDA_R_16BF, {}},
       .b = {right.const_data_ptr(), CUDA_R_16BF, {}},
       .out = sums.mutable_data_ptr(),
       .out_type = CUDA_R_32F});
  sums.mul_(at::mul(a.scale_inv, b.scale_inv));
  if (bias) sums.add_(*bias);
  return sums.to(out_dtype);
}

// A sum over nothing.
at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b,
                         const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  at::Tensor out = at::zeros({a.size(0), b.size(0)}, a.options().dtype(out_dtype));
  return bias ? out.add_(*bias) : out;
}

at::Tensor gemm_cuda(const at::Tensor& a_codes, const at::Tensor& a_scale_inv,
                     const std::optional<at::Tensor>& a_tensor_scale, std::int64_t a_format,
                     std::int64_t a_mode, const at::Tensor& b_codes, const at::Tensor& b_scale_inv,
                     const std::optional<at::Tensor>& b_tensor_scale, std::int64_t b_format,
                     std::int64_t b_mode, const std::optional<at::Tensor>& given_bias,
                     at::ScalarType out_dtype) {
  const at::Tensor undefined;
  const GemmOperand a{a_codes, a_scale_inv, a_tensor_scale ? *a_tensor_scale : undefined,
                      static_cast<FormatId>(a_format), static_cast<ScalingMode>(a_mode)};
  const GemmOperand b{b_codes, b_scale_inv, b_tensor_scale ? *b_tensor_scale : undefined,
                      static_cast<FormatId>(b_format), static_cast<ScalingMode>(b_mode)};
  ops::check_gemm(a, b, given_bias, out_dtype);
  check_same_device(
      "gemm", {a_codes, a_scale_inv, b_codes, b_scale_inv, given_bias.value_or(at::Tensor())});
  if (a.mode != ScalingMode::tensor) {
    raise<UsageError>("gemm: {} scaling on CUDA; expected tensor; train this recipe on the CPU",
                      name_of(a.mode));
  }
  const DeviceScope scope("gemm", a_codes);
  const std::optional<at::Tensor> bias = dense_bias(given_bias);
  if (a_codes.size(0) * a_codes.size(1) * b_codes.size(0) == 0) {
    return empty_product(a_codes, b_codes, bias, out_dtype);
  }
  if (has_fp8_shape(a_codes, b_codes)) {
    ops::report_gemm_choice({"cuBLASLt FP8 product", ""});
    return fp8_gemm(scope, a, b, bias, out_dtype);
  }
  ops::report_gemm_choice(
      {"BF16 product of decoded operands", "a dimension is no multiple of 16, as FP8 needs"});
  return emulated_gemm(scope, a, b, bias, out_dtype);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("gemm", TORCH_FN(telens::cuda::gemm_cuda));
}
