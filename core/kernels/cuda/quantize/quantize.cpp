// amax, per-tensor quantization and dequantization on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <tuple>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/checks.h"
#include "core/ops/quantize.h"

namespace telens::cuda {
namespace {

at::Tensor amax_cuda(const at::Tensor& x) {
  const FormatId format = ops::check_high_precision("amax", "x", x.scalar_type());
  const DeviceScope scope("amax", x);
  // A maximum does not depend on element order.
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  at::Tensor result = at::zeros({}, x.options().dtype(at::kFloat));
  check_launch(
      "amax", launch_amax({dense.const_data_ptr(), dense.numel(), result.mutable_data_ptr<float>()},
                          format, scope.context()));
  return result;
}

float* floats_or_null(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->mutable_data_ptr<float>() : nullptr;
}

at::Tensor quantize_fp8_cuda(const at::Tensor& x, const at::Tensor& scale,
                             const std::optional<at::Tensor>& amax, std::int64_t format) {
  const FormatId output = ops::check_quantize_fp8(x, scale, amax, format);
  const FormatId input = ops::check_high_precision("quantize_fp8", "x", x.scalar_type());
  const DeviceScope scope("quantize_fp8", x);
  const at::Tensor contiguous = x.contiguous();
  at::Tensor codes = ops::empty_codes(x);
  check_launch("quantize_fp8", launch_quantize({contiguous.const_data_ptr(), contiguous.numel(),
                                                scale.const_data_ptr<float>(), floats_or_null(amax),
                                                codes.mutable_data_ptr<std::uint8_t>()},
                                               input, output, scope.context()));
  return codes;
}

// Elements per pack in the transposing kernels.
constexpr std::int64_t kPack = 16;

bool fits_packs(const at::Tensor& matrix) {
  return matrix.dim() == 2 && matrix.size(0) % kPack == 0 && matrix.size(1) % kPack == 0 &&
         is_aligned(matrix.const_data_ptr(), kPack);
}

at::Tensor transpose_codes_cuda(const at::Tensor& codes) {
  ops::check_transpose_codes(codes);
  const at::Tensor dense = codes.contiguous();
  if (!fits_packs(dense) || dense.numel() == 0) return dense.t().contiguous();
  const DeviceScope scope("transpose_codes", codes);
  at::Tensor transposed = at::empty({dense.size(1), dense.size(0)}, dense.options());
  check_launch("transpose_codes",
               launch_transpose_codes({dense.const_data_ptr<std::uint8_t>(), dense.size(0),
                                       dense.size(1), transposed.mutable_data_ptr<std::uint8_t>()},
                                      scope.context()));
  return transposed;
}

// Both orientations in one read if the kernel's packs fit the matrix.
std::tuple<at::Tensor, at::Tensor> quantize_fp8_both_cuda(const at::Tensor& x,
                                                          const at::Tensor& scale,
                                                          const std::optional<at::Tensor>& amax,
                                                          std::int64_t format) {
  const FormatId output = ops::check_quantize_fp8(x, scale, amax, format);
  const FormatId input = ops::check_high_precision("quantize_fp8_both", "x", x.scalar_type());
  if (!fits_packs(x)) {
    const at::Tensor codes = quantize_fp8_cuda(x, scale, amax, format);
    return {codes, codes.t().contiguous()};
  }
  const DeviceScope scope("quantize_fp8_both", x);
  const at::Tensor contiguous = x.contiguous();
  at::Tensor codes = ops::empty_codes(x);
  at::Tensor transposed = at::empty({x.size(1), x.size(0)}, codes.options());
  check_launch("quantize_fp8_both",
               launch_quantize_transpose({contiguous.const_data_ptr(), x.size(0), x.size(1),
                                          scale.const_data_ptr<float>(), floats_or_null(amax),
                                          codes.mutable_data_ptr<std::uint8_t>(),
                                          transposed.mutable_data_ptr<std::uint8_t>()},
                                         input, output, scope.context()));
  return {codes, transposed};
}

at::Tensor convert_codes(const char* operation, const at::Tensor& codes, const float* scale_inv,
                         FormatId format, at::ScalarType dtype) {
  const DeviceScope scope(operation, codes);
  const at::Tensor dense = codes.is_non_overlapping_and_dense() ? codes : codes.contiguous();
  at::Tensor values = ops::empty_values(dense, dtype);
  check_launch(operation,
               launch_dequantize({dense.const_data_ptr<std::uint8_t>(), dense.numel(), scale_inv,
                                  values.mutable_data_ptr()},
                                 format, ops::check_high_precision(operation, "the result", dtype),
                                 scope.context()));
  return values;
}

at::Tensor dequantize_fp8_cuda(const at::Tensor& codes, const at::Tensor& scale_inv,
                               std::int64_t format, at::ScalarType dtype) {
  const FormatId input = ops::check_dequantize_fp8(codes, scale_inv, format, dtype);
  return convert_codes("dequantize_fp8", codes, scale_inv.const_data_ptr<float>(), input, dtype);
}

at::Tensor decode_fp8_cuda(const at::Tensor& codes, std::int64_t format, at::ScalarType dtype) {
  const FormatId input = ops::check_decode_fp8(codes, format, dtype);
  return convert_codes("decode_fp8", codes, nullptr, input, dtype);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("amax", TORCH_FN(telens::cuda::amax_cuda));
  library.impl("quantize_fp8", TORCH_FN(telens::cuda::quantize_fp8_cuda));
  library.impl("quantize_fp8_both", TORCH_FN(telens::cuda::quantize_fp8_both_cuda));
  library.impl("transpose_codes", TORCH_FN(telens::cuda::transpose_codes_cuda));
  library.impl("dequantize_fp8", TORCH_FN(telens::cuda::dequantize_fp8_cuda));
  library.impl("decode_fp8", TORCH_FN(telens::cuda::decode_fp8_cuda));
}
