// The quantized GEMM on the CPU: exact products without FP8 hardware.
//
// Every E4M3 and E5M2 value is a BF16 value, so decoding is exact, a BF16 GEMM multiplies exactly
// (8 x 8 significant bits fit FP32's 24) and accumulates in FP32. The two per-tensor scales are
// applied to the FP32 sum as alpha, and the result is rounded once.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <cpuinfo.h>
#include <torch/library.h>

#include "core/base/error.h"
#include "core/formats/scaling_mode.h"
#include "core/ops/gemm_checks.h"
#include "core/ops/quantize.h"

namespace telens {
namespace {

// Without these instructions LibTorch's BF16 GEMM is 5 to 100 times slower than its FP32 one.
bool has_native_bf16() {
  static const bool native =
      cpuinfo_initialize() && (cpuinfo_has_x86_avx512bf16() || cpuinfo_has_x86_amx_bf16());
  return native;
}

// Below this many multiplications LibTorch leaves oneDNN for a loop of its own, which rounds
// intermediate sums of BF16.
constexpr std::int64_t kSmallProduct = 16 * 16 * 16;

at::ScalarType compute_dtype(const at::Tensor& a, const at::Tensor& b, at::ScalarType out_dtype) {
  const bool small = a.size(0) * a.size(1) * b.size(0) <= kSmallProduct;
  return out_dtype == at::kBFloat16 && !small && has_native_bf16() ? at::kBFloat16 : at::kFloat;
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& a_scale_inv, std::int64_t a_format,
                const at::Tensor& b, const at::Tensor& b_scale_inv, std::int64_t b_format,
                std::int64_t scaling_mode, const std::optional<at::Tensor>& bias,
                at::ScalarType out_dtype) {
  ops::check_gemm(a, b, bias, out_dtype);
  if (static_cast<ScalingMode>(scaling_mode) != ScalingMode::tensor) {
    raise<UsageError>("gemm: scaling mode {} on the CPU; expected tensor",
                      name_of(static_cast<ScalingMode>(scaling_mode)));
  }
  const at::ScalarType dtype = compute_dtype(a, b, out_dtype);
  const at::Tensor left = ops::decode_fp8(a, static_cast<FormatId>(a_format), dtype);
  const at::Tensor right = ops::decode_fp8(b, static_cast<FormatId>(b_format), dtype).t();
  const float alpha = *a_scale_inv.const_data_ptr<float>() * *b_scale_inv.const_data_ptr<float>();
  const bool has_bias = bias && bias->defined();
  at::Tensor out = at::empty({a.size(0), b.size(0)}, a.options().dtype(dtype));
  if (has_bias) {
    at::addmm_out(out, bias->to(dtype), left, right, 1, alpha);
  } else {
    at::addmm_out(out, out, left, right, 0, alpha);
  }
  return out.to(out_dtype);
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) { library.impl("gemm", telens::gemm); }
