// Checks and empty results with which every backend's kernels of core/ops/block_quantize.h begin.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "core/ops/block_quantize.h"

namespace telens::ops {

using telens::kHadamardSize;

constexpr std::int64_t rounded_up_quotient(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Results of the operators: codes and scale_inv, then codes and scale_inv of the columnwise
// orientation.
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
inline FourTensors as_four_tensors(const BlockCodesPair& pair) {
  return {pair.rowwise.codes, pair.rowwise.scale_inv, pair.columnwise.codes,
          pair.columnwise.scale_inv};
}

// Like FourTensors, with the tensor's scale after each scale_inv.
using SixTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
inline SixTensors as_six_tensors(const BlockCodesPair& pair) {
  const auto& [rowwise, columnwise] = pair;
  return {rowwise.codes,    rowwise.scale_inv,    rowwise.tensor_scale,
          columnwise.codes, columnwise.scale_inv, columnwise.tensor_scale};
}

// Returns true if the columns are stored one after another.
bool is_transposed(const at::Tensor& matrix);

// x: 2-D, high precision. Returns x's format.
FormatId check_matrix(std::string_view operation, const at::Tensor& x);

ScaleRounding check_scale_rounding(std::string_view operation, std::int64_t rounding);

// Returns a mode with blocks. Throws UsageError for any other mode.
ScalingMode check_block_mode(std::string_view operation, std::int64_t mode);

// Returns the element format of a mode. Throws UsageError if `format` is not one of the mode's
// formats.
FormatId check_element_format(std::string_view operation, std::int64_t format, ScalingMode mode);

struct BlockCodesFormats {
  FormatId element;
  ScalingMode mode;
};
// Checks the codes and scales of an orientation: their shapes must match each other and the mode.
BlockCodesFormats check_block_codes(std::string_view operation, const BlockCodes& quantized,
                                    std::int64_t format, std::int64_t mode);

// Returns empty codes and scales for the orientations of x that `orientations` requests. The
// columnwise ones are transposed views.
BlockCodesPair empty_block_codes(const at::Tensor& x, ScalingMode mode, at::ScalarType scale_dtype,
                                 const Orientations& orientations);

// Returns empty packed FP4 codes of an orientation of a matrix [rows, columns], whose memory is
// transposed or not.
BlockCodes empty_packed_codes(std::int64_t rows, std::int64_t columns, bool transposed,
                              const at::TensorOptions& options);

// Like empty_packed_codes, for the orientations of x that `orientations` requests. squares: the
// scales of the columnwise orientation are stored row after row. row_scaled: each row of codes has
// an element of tensor_scale.
BlockCodesPair empty_packed_pair(const at::Tensor& x, bool squares,
                                 const Orientations& orientations, bool row_scaled = false);

void check_hadamard(std::string_view operation, const at::Tensor& x, std::int64_t signs);
// Also checks that 16x16 blocks and the transform are not requested together, that random_state, if
// given, is int64 with 2 elements on x's device, and that row_scaled is not combined with the
// transform or random_state.
void check_nvfp4(const at::Tensor& x, bool two_dimensional,
                 std::optional<std::int64_t> hadamard_signs,
                 const std::optional<at::Tensor>& random_state, bool columnwise, bool row_scaled);
void check_amaxes(std::string_view operation, const at::Tensor& x,
                  const std::optional<at::Tensor>& amaxes);
// Checks that row_scaled is not combined with 16x16 blocks or given amaxes.
void check_row_scaled(std::string_view operation, bool row_scaled, bool two_dimensional,
                      const std::optional<at::Tensor>& amaxes);

// Returns the largest magnitude that is not NaN for each row (dimension 0) or column (1) of a
// matrix, in FP32; 0 if there is none. On x's device.
at::Tensor largest_numbers(const at::Tensor& x, std::int64_t dimension);

// Repeats the scales of squares [rows / block, columns / block] as the scales of blocks with a
// height of one row, which quantized data has: each row of scales as often as the square has rows,
// `rows` in total.
at::Tensor repeat_scales(const at::Tensor& squares, std::int64_t block, std::int64_t rows);

}  // namespace telens::ops
