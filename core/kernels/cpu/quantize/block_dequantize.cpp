// dequantize_blocks on the CPU: rows of the codes in memory order, on every thread.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/block_scales.h"
#include "core/kernels/cpu/quantize/dequantize_range.h"
#include "core/ops/block_quantize_checks.h"
#include "core/ops/checks.h"
#include "core/ops/quantize_checks.h"

namespace telens::kernels {
namespace {

at::Tensor dequantize_blocks(const at::Tensor& given_codes, const at::Tensor& scale_inv,
                             const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                             std::int64_t mode, at::ScalarType dtype) {
  const auto [element, scaling] = ops::check_block_codes(
      "dequantize_blocks", {given_codes, scale_inv, tensor_scale.value_or(at::Tensor())}, format,
      mode);
  const FormatId output = ops::check_high_precision("dequantize_blocks", "the result", dtype);
  const at::Tensor codes = is_packed_fp4(scaling) ? unpack(given_codes) : given_codes;
  const bool transposed = ops::is_transposed(codes);
  const at::Tensor dense = transposed ? codes : codes.contiguous();
  at::Tensor values = ops::empty_values(dense, dtype);
  const at::Tensor of_blocks = decode_scales(scale_inv, scaling);
  const Scales scales(tensor_scale ? of_blocks.mul(tensor_scale->view({-1, 1})) : of_blocks);

  const std::int64_t lines = codes.size(transposed ? 1 : 0);
  const std::int64_t length = codes.size(transposed ? 0 : 1);
  const auto* const from = dense.const_data_ptr<std::uint8_t>();
  auto* const to = static_cast<std::byte*>(values.mutable_data_ptr());
  const auto width = static_cast<std::int64_t>(values.element_size());
  const std::int64_t grain = kGrain / std::max<std::int64_t>(1, length) + 1;
  at::parallel_for(0, lines, grain,
                   [&, element = element, scaling = scaling](std::int64_t begin, std::int64_t end) {
                     std::vector<float> of_elements(static_cast<std::size_t>(length));
                     for (std::int64_t line = begin; line < end; ++line) {
                       if (transposed) {
                         scales_along_column(scales, scaling, line, of_elements);
                       } else {
                         scales_along_row(scales, scaling, line, of_elements);
                       }
                       dequantize_range_by_scales(element, from + line * length, of_elements.size(),
                                                  of_elements.data(), output,
                                                  to + line * length * width);
                     }
                   });
  return values;
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("dequantize_blocks", TORCH_FN(telens::kernels::dequantize_blocks));
}
