#include "core/kernels/cpu/gemm/decode_row_by_row.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/ops/checks.h"
#include "core/ops/quantize.h"

namespace telens::kernels {
namespace {

constexpr auto kSide = static_cast<std::int64_t>(kTile);

bool lies_in_tiles_of_the_other_orientation(const at::Tensor& codes) {
  return !codes.is_contiguous() && codes.t().is_contiguous() && codes.size(0) % kSide == 0 &&
         codes.size(1) % kSide == 0;
}

}  // namespace

at::Tensor decode_row_by_row(const at::Tensor& codes, FormatId format, at::ScalarType dtype) {
  const bool is_gemm_dtype = dtype == at::kBFloat16 || dtype == at::kFloat;
  if (!is_gemm_dtype || !lies_in_tiles_of_the_other_orientation(codes)) {
    return ops::decode_fp8(codes, format, dtype);
  }
  const FormatId output = ops::check_high_precision("decode_fp8", "the result", dtype);
  const std::int64_t rows = codes.size(0);
  const std::int64_t columns = codes.size(1);
  at::Tensor values = at::empty({rows, columns}, codes.options().dtype(dtype));
  const CodeMatrix transposed{codes.const_data_ptr<std::uint8_t>(),
                              static_cast<std::size_t>(columns), static_cast<std::size_t>(rows)};
  auto* const first = static_cast<std::byte*>(values.mutable_data_ptr());
  const auto row_bytes = static_cast<std::int64_t>(values.element_size()) * columns;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (columns * kSide));
  at::parallel_for(0, rows / kSide, grain, [&](std::int64_t begin, std::int64_t end) {
    decode_columns(format, transposed, static_cast<std::size_t>(begin * kSide),
                   static_cast<std::size_t>(end * kSide), output,
                   first + begin * kSide * row_bytes);
  });
  return values;
}

}  // namespace telens::kernels
