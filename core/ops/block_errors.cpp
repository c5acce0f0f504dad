#include "core/ops/block_errors.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/ops/block_quantize.h"
#include "core/ops/dispatcher.h"
#include "core/ops/statistics_layout.h"
#include "core/ops/tensor_utils.h"

namespace telens::ops {
namespace {

constexpr const char* kErrors = "block_cast_errors";
constexpr const char* kDifference = "block_copies_difference";

at::Tensor block_cast_errors_meta(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scale_inv,
                                  const std::optional<at::Tensor>& tensor_scale,
                                  std::int64_t format, std::int64_t mode) {
  check_block_cast(kErrors, x, {codes, scale_inv, tensor_scale.value_or(at::Tensor())}, format,
                   mode);
  return at::empty({scale_inv.size(0), scale_inv.size(1), kBlockErrorsWords},
                   x.options().dtype(at::kLong));
}

at::Tensor block_copies_difference_meta(const at::Tensor& codes, const at::Tensor& scale_inv,
                                        const std::optional<at::Tensor>& tensor_scale,
                                        const at::Tensor& column_codes,
                                        const at::Tensor& column_scale_inv,
                                        const std::optional<at::Tensor>& column_tensor_scale,
                                        std::int64_t format, std::int64_t mode,
                                        std::optional<std::int64_t>) {
  check_block_copies({codes, scale_inv, tensor_scale.value_or(at::Tensor())},
                     {column_codes, column_scale_inv, column_tensor_scale.value_or(at::Tensor())},
                     format, mode);
  return at::empty({kCopiesDifferenceWords}, codes.options().dtype(at::kLong));
}

}  // namespace

void check_block_copies(const BlockCodes& rowwise, const BlockCodes& columnwise,
                        std::int64_t format, std::int64_t mode) {
  const ScalingMode scaling = check_block_codes(kDifference, rowwise, format, mode).mode;
  const std::int64_t codes_per_byte = scheme(scaling).codes_per_byte();
  check_block_codes(kDifference, columnwise, format, mode);
  const auto stored = [&](std::int64_t size) { return rounded_up_quotient(size, codes_per_byte); };
  const at::Tensor& row_codes = rowwise.codes;
  const at::Tensor& column_codes = columnwise.codes;
  if (row_codes.size(1) == stored(column_codes.size(0)) &&
      column_codes.size(1) == stored(row_codes.size(0))) {
    return;
  }
  raise<ShapeError>(
      "{}: rowwise codes have shape {}, columnwise codes {}; expected codes of a matrix and of "
      "its transpose",
      kDifference, c10::str(row_codes.sizes()), c10::str(column_codes.sizes()));
}

at::Tensor block_cast_errors(const at::Tensor& x, const BlockCast& cast) {
  static const auto op =
      find_operator<decltype(block_cast_errors_meta)>("telens::block_cast_errors");
  const auto& [codes, scale_inv, tensor_scale] = cast.codes;
  return op.call(x, codes, scale_inv, if_defined(tensor_scale),
                 static_cast<std::int64_t>(cast.format), static_cast<std::int64_t>(cast.mode));
}

at::Tensor without_transform(const BlockCast& columnwise, std::int64_t rows, std::int64_t signs) {
  const at::Tensor decoded =
      dequantize_blocks(columnwise.codes, columnwise.format, columnwise.mode, at::kFloat);
  // Two codes per byte may give one row too many.
  return hadamard_transform(decoded.narrow(1, 0, rows).t(), static_cast<std::uint16_t>(signs),
                            /*inverse=*/true);
}

at::Tensor block_copies_difference(const BlockCast& rowwise, const BlockCast& columnwise,
                                   std::optional<std::uint16_t> hadamard_signs) {
  static const auto op =
      find_operator<decltype(block_copies_difference_meta)>("telens::block_copies_difference");
  if (rowwise.format != columnwise.format || rowwise.mode != columnwise.mode) {
    raise<UsageError>("{}: the copies are {} {} and {} {}; expected two of the same kind",
                      kDifference, get_name(rowwise.mode), get_name(rowwise.format),
                      get_name(columnwise.mode), get_name(columnwise.format));
  }
  const BlockCodes& a = rowwise.codes;
  const BlockCodes& b = columnwise.codes;
  return op.call(a.codes, a.scale_inv, if_defined(a.tensor_scale), b.codes, b.scale_inv,
                 if_defined(b.tensor_scale), static_cast<std::int64_t>(rowwise.format),
                 static_cast<std::int64_t>(rowwise.mode), hadamard_signs);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("block_cast_errors", TORCH_FN(telens::ops::block_cast_errors_meta));
  library.impl("block_copies_difference", TORCH_FN(telens::ops::block_copies_difference_meta));
}
