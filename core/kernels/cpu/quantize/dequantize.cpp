// dequantize_fp8 and decode_fp8 on the CPU: ranges of the codes on every thread.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/dequantize_range.h"
#include "core/ops/checks.h"
#include "core/ops/quantize_checks.h"

namespace telens::kernels {
namespace {

// Calls convert(codes, size, values) for ranges of memory that have the same element order in both
// tensors.
template <typename Convert>
at::Tensor convert_codes(const at::Tensor& codes, at::ScalarType dtype, const Convert& convert) {
  const at::Tensor dense = codes.is_non_overlapping_and_dense() ? codes : codes.contiguous();
  at::Tensor values = ops::empty_values(dense, dtype);
  const auto* const from = dense.const_data_ptr<std::uint8_t>();
  auto* const to = static_cast<std::byte*>(values.mutable_data_ptr());
  const auto width = static_cast<std::int64_t>(values.element_size());
  at::parallel_for(0, dense.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    convert(from + begin, static_cast<std::size_t>(end - begin), to + begin * width);
  });
  return values;
}

at::Tensor dequantize_fp8(const at::Tensor& codes, const at::Tensor& scale_inv, std::int64_t format,
                          at::ScalarType dtype) {
  const FormatId input = ops::check_dequantize_fp8(codes, scale_inv, format, dtype);
  const FormatId output = ops::check_high_precision("dequantize_fp8", "the result", dtype);
  const float scale = *scale_inv.const_data_ptr<float>();
  return convert_codes(codes, dtype, [&](const std::uint8_t* from, std::size_t size, void* to) {
    dequantize_range(input, from, size, scale, output, to);
  });
}

at::Tensor decode_fp8(const at::Tensor& codes, std::int64_t format, at::ScalarType dtype) {
  const FormatId input = ops::check_decode_fp8(codes, format, dtype);
  const FormatId output = ops::check_high_precision("decode_fp8", "the result", dtype);
  return convert_codes(codes, dtype, [&](const std::uint8_t* from, std::size_t size, void* to) {
    decode_range(input, from, size, output, to);
  });
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("dequantize_fp8", TORCH_FN(telens::kernels::dequantize_fp8));
  library.impl("decode_fp8", TORCH_FN(telens::kernels::decode_fp8));
}
