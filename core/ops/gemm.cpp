#include "core/ops/gemm.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/base/error.h"
#include "core/ops/dispatcher.h"
#include "core/ops/gemm_checks.h"

namespace telens::ops {
namespace {

at::Tensor gemm_meta(const at::Tensor& a, const at::Tensor&, std::int64_t, const at::Tensor& b,
                     const at::Tensor&, std::int64_t, std::int64_t,
                     const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  check_gemm(a, b, bias, out_dtype);
  return at::empty({a.size(0), b.size(0)}, a.options().dtype(out_dtype));
}

}  // namespace

void check_gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                at::ScalarType out_dtype) {
  if (a.scalar_type() != at::kByte || b.scalar_type() != at::kByte) {
    raise<ShapeError>("gemm: operands have dtypes {} and {}; expected codes (Byte)",
                      c10::toString(a.scalar_type()), c10::toString(b.scalar_type()));
  }
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(1)) {
    raise<ShapeError>("gemm: operands have shapes {} and {}; expected [M, K] and [N, K]",
                      c10::str(a.sizes()), c10::str(b.sizes()));
  }
  if (out_dtype != at::kBFloat16 && out_dtype != at::kHalf && out_dtype != at::kFloat) {
    raise<ShapeError>("gemm: out_dtype {}; expected BFloat16, Half or Float",
                      c10::toString(out_dtype));
  }
  if (bias && bias->defined() &&
      (bias->dim() != 1 || bias->size(0) != b.size(0) || bias->scalar_type() != out_dtype)) {
    raise<ShapeError>("gemm: bias has shape {} and dtype {}; expected [{}] and {}",
                      c10::str(bias->sizes()), c10::toString(bias->scalar_type()), b.size(0),
                      c10::toString(out_dtype));
  }
}

at::Tensor gemm(const GemmOperand& a, const GemmOperand& b, ScalingMode mode,
                const at::Tensor& bias, at::ScalarType out_dtype) {
  static const auto handle = find_operator<decltype(gemm_meta)>("telens::gemm");
  return handle.call(a.codes, a.scale_inv, static_cast<std::int64_t>(a.format), b.codes,
                     b.scale_inv, static_cast<std::int64_t>(b.format),
                     static_cast<std::int64_t>(mode),
                     bias.defined() ? std::optional(bias) : std::nullopt, out_dtype);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) { library.impl("gemm", telens::ops::gemm_meta); }
