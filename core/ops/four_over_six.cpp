#include "core/ops/four_over_six.h"

#include <torch/library.h>

#include "core/ops/block_quantize_checks.h"
#include "core/ops/dispatcher.h"
#include "core/ops/optional_tensor.h"

namespace telens::ops {
namespace {

SixTensors quantize_four_over_six_meta(const at::Tensor& x, bool two_dimensional,
                                       bool squared_error, double largest_scale, bool rowwise,
                                       bool columnwise, const std::optional<at::Tensor>& amaxes,
                                       bool row_scaled) {
  check_matrix("quantize_four_over_six", x);
  check_four_over_six(largest_scale, squared_error);
  check_amaxes("quantize_four_over_six", x, amaxes);
  check_row_scaled("quantize_four_over_six", row_scaled, two_dimensional, amaxes);
  return as_six_tensors(empty_packed_pair(x, two_dimensional, {rowwise, columnwise}, row_scaled));
}

}  // namespace

FourOverSix check_four_over_six(double largest_scale, bool squared_error) {
  if (largest_scale != 256 && largest_scale != E4M3::kMax) {
    raise<UsageError>("quantize_four_over_six: largest_scale is {}; expected 256 or 448",
                      largest_scale);
  }
  return {squared_error, static_cast<float>(largest_scale)};
}

BlockCodesPair quantize_four_over_six(const at::Tensor& x, const FourOverSixOptions& options,
                                      const Orientations& orientations) {
  static const auto op =
      find_operator<decltype(quantize_four_over_six_meta)>("telens::quantize_four_over_six");
  const auto [codes, scale_inv, tensor_scale, column_codes, column_scale_inv, column_tensor_scale] =
      op.call(x, options.two_dimensional, options.choice.squared_error,
              options.choice.largest_scale, orientations.rowwise, orientations.columnwise,
              if_defined(options.amaxes), options.row_scaled);
  return {{codes, scale_inv, tensor_scale}, {column_codes, column_scale_inv, column_tensor_scale}};
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("quantize_four_over_six", TORCH_FN(telens::ops::quantize_four_over_six_meta));
}
