// Per-tensor scaled FP8 on the CPU: amax, quantize_fp8, dequantize_fp8 and decode_fp8, in ranges of
// memory on every thread.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/ops/checks.h"
#include "core/ops/quantize.h"

namespace telens::kernels {
namespace {

// The largest magnitude over several ranges, as a code of their format.
class SharedMaximum {
 public:
  void add(std::uint32_t code) {
    std::uint32_t seen = code_.load(std::memory_order_relaxed);
    while (code > seen && !code_.compare_exchange_weak(seen, code, std::memory_order_relaxed)) {
    }
  }

  float value(FormatId format) const {
    return dispatch_high_precision_format(format, "amax", [&]<typename Format>() {
      return decode<Format>(static_cast<typename Format::Bits>(code_.load()));
    });
  }

 private:
  std::atomic<std::uint32_t> code_{0};
};

const std::byte* element_at(const at::Tensor& contiguous, std::int64_t index) {
  return static_cast<const std::byte*>(contiguous.const_data_ptr()) +
         index * contiguous.element_size();
}

at::Tensor amax(const at::Tensor& x) {
  const FormatId input = ops::check_high_precision("amax", "x", x.scalar_type());
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  SharedMaximum maximum;
  at::parallel_for(0, dense.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    maximum.add(amax_range(input, element_at(dense, begin), end - begin));
  });
  return at::full({}, maximum.value(input), x.options().dtype(at::kFloat));
}

at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& scale,
                        const std::optional<at::Tensor>& amax, std::int64_t format) {
  const FormatId output = ops::check_quantize_fp8(x, scale, amax, format);
  const FormatId input = ops::check_high_precision("quantize_fp8", "x", x.scalar_type());
  const at::Tensor contiguous = x.contiguous();
  at::Tensor codes = ops::empty_codes(x);

  const float factor = *scale.const_data_ptr<float>();
  auto* const first_code = codes.mutable_data_ptr<std::uint8_t>();
  SharedMaximum maximum;
  at::parallel_for(0, contiguous.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    maximum.add(quantize_range(input, element_at(contiguous, begin), end - begin, factor, output,
                               first_code + begin));
  });
  if (amax) {
    float& so_far = *amax->mutable_data_ptr<float>();
    const float largest = maximum.value(input);
    if (largest > so_far || std::isnan(largest)) so_far = largest;
  }
  return codes;
}

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
  library.impl("amax", TORCH_FN(telens::kernels::amax));
  library.impl("quantize_fp8", TORCH_FN(telens::kernels::quantize_fp8));
  library.impl("dequantize_fp8", TORCH_FN(telens::kernels::dequantize_fp8));
  library.impl("decode_fp8", TORCH_FN(telens::kernels::decode_fp8));
}
