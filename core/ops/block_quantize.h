// Block quantization: quantizes and dequantizes with one scale per block. These are the operators
// of the same names in the operator library `telens`, called through the dispatcher.
// docs/formats.md has the definitions.
//
// x is a matrix [rows, columns] of BF16, FP16 or FP32, with any size and strides. The rowwise
// result has blocks along x's rows. The columnwise result is the transposed matrix [columns, rows],
// quantized with blocks along *its* rows, and has x's memory order (a transposed view). Bits are
// the same on every device and with any number of threads. A NaN is excluded from the largest
// magnitude of its block and stays NaN, except in NVFP4 and MXFP6 (below).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "core/base/error.h"
#include "core/formats/convert.h"
#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/ops/four_over_six_formula.h"

namespace telens::ops {

// The orientations to compute.
struct Orientations {
  bool rowwise = true;
  bool columnwise = true;
};

// One orientation. All tensors are undefined if it was not requested.
struct BlockCodes {
  // uint8 [rows, columns]; NVFP4: [rows, columns / 2 rounded up], the element of even index in the
  // lower four bits.
  at::Tensor codes;
  at::Tensor scale_inv;  // [rows / block height, columns / block length], both rounded up
  // NVFP4: FP32 with 1 element or, if row_scaled, one for each of the codes' rows. Undefined for
  // other modes.
  at::Tensor tensor_scale;
};

struct BlockCodesPair {
  BlockCodes rowwise;
  BlockCodes columnwise;
};

// MXFP8 (OCP MX 1.0): blocks of 32 elements, E8M0 scales (uint8). two_dimensional: blocks of 32x32
// elements share a scale, so that both orientations hold the same values; the scales are still
// stored per 1x32 block.
struct Mxfp8Options {
  ScaleRounding scale_rounding = ScaleRounding::up;
  bool two_dimensional = false;
};
TELENS_EXPORT BlockCodesPair quantize_mxfp8(const at::Tensor& x, FormatId format,
                                            const Mxfp8Options& options,
                                            const Orientations& orientations);

// MXFP6 (OCP MX 1.0): like quantize_mxfp8, with E3M2 or E2M3 elements, one code per byte. A NaN
// becomes the largest value, and the scale of its block becomes NaN. Throws UsageError on a GPU.
TELENS_EXPORT BlockCodesPair quantize_mxfp6(const at::Tensor& x, FormatId format,
                                            const Mxfp8Options& options,
                                            const Orientations& orientations);

// FP8 in 128-blocks: blocks of 1x128 elements or, if two_dimensional, of 128x128, each with
//   scale = largest value of the format / max(amax, epsilon),
// optionally rounded down to a power of two (core/ops/scale_formula.h). The stored value is 1 /
// scale (FP32).
struct Fp8BlockOptions {
  bool two_dimensional = false;
  bool power_of_2_scales = true;
  float amax_epsilon = 0.0F;
};
TELENS_EXPORT BlockCodesPair quantize_fp8_blocks(const at::Tensor& x, FormatId format,
                                                 const Fp8BlockOptions& options,
                                                 const Orientations& orientations);

// NVFP4: E2M1 in blocks of 16 elements, with E4M3 scales (uint8) and one FP32 scale for the tensor,
// computed from the largest magnitude that is not NaN. A NaN becomes +6, and the scale of its block
// becomes NaN.
struct Nvfp4Options {
  bool two_dimensional = false;  // 16x16 elements share a scale, as with MXFP8
  // The columnwise orientation is computed from hadamard_transform(x) with these signs.
  std::optional<std::uint16_t> hadamard_signs = std::nullopt;
  // Enables stochastic rounding: int64 [2] on x's device, the key and an offset of Philox4x32-10.
  // Element i of x uses word i % 4 of counter (i / 4 low, i / 4 high, 0 rowwise or 1 columnwise,
  // offset).
  at::Tensor random_state = {};
  // FP32 [2] on x's device: the largest magnitudes, rowwise and columnwise, from which the tensor's
  // scales are computed instead of from x. For example, the magnitudes over all parts of a tensor
  // that is quantized in parts.
  at::Tensor amaxes = {};
  // Each row of codes (columnwise: each of x's columns) has a scale instead of the tensor's,
  // computed from its largest number. Excludes all options above.
  bool row_scaled = false;
};
TELENS_EXPORT BlockCodesPair quantize_nvfp4(const at::Tensor& x, const Nvfp4Options& options,
                                            const Orientations& orientations);

// FP4 with blocks scaled to 4 or to 6, whichever leaves the smaller error.
// core/ops/four_over_six_formula.h has the definition.
struct FourOverSixOptions {
  bool two_dimensional = false;  // 16x16 elements share a scale and the choice
  FourOverSix choice = {};
  // As in Nvfp4Options.
  at::Tensor amaxes = {};
  bool row_scaled = false;
};

// x, the orientations, codes and scales are the same as in quantize_nvfp4. Rounds to nearest. A NaN
// becomes +6, and the scale of its block becomes NaN. In squares, both orientations hold the same
// values.
TELENS_EXPORT BlockCodesPair quantize_four_over_six(const at::Tensor& x,
                                                    const FourOverSixOptions& options,
                                                    const Orientations& orientations);

// The random Hadamard transform over every 16 rows of x [rows, columns], rows divisible by 16:
//   y[j] = 1/4 sum_i H[i][j] s[i] x[i],  H[i][j] = (-1)^popcount(i & j),  s[i] = -1 if bit i is set
// inverse: computes x from y. Arithmetic is FP32, added in the order of the fast transform
// (neighbors 1, 2, 4, 8 apart), rounded once to x's dtype. The transform is orthogonal: wgrad is
// the same if both operands are transformed.
TELENS_EXPORT at::Tensor hadamard_transform(const at::Tensor& x, std::uint16_t signs,
                                            bool inverse = false);

// Returns float(code) * scale, rounded to FP32, then to dtype (BF16, FP16 or FP32). The scale is
// scale_inv of the element's block, multiplied by tensor_scale (of its row) if that is defined, and
// rounded to FP32. The result has the codes' memory order if the codes are dense. For NVFP4 with an
// odd number of columns, it has one column more.
TELENS_EXPORT at::Tensor dequantize_blocks(const BlockCodes& quantized, FormatId format,
                                           ScalingMode mode, at::ScalarType dtype);

// Checks and empty results with which every backend's kernels of these operators begin.

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
// Returns the MXFP6 mode whose elements have this format. Throws UsageError for any other format.
ScalingMode check_mxfp6_format(std::string_view operation, std::int64_t format);

// Checks the codes and scales of an orientation: their shapes must match each other and the mode.
BlockCodesFormats check_block_codes(std::string_view operation, const BlockCodes& quantized,
                                    std::int64_t format, std::int64_t mode);

// Throws UsageError if the tensor is on a GPU and the mode has no CUDA kernels.
void check_kernels(std::string_view operation, ScalingMode mode, const at::Tensor& tensor);

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

// Throws UsageError for a scale that is neither 256 nor 448.
FourOverSix check_four_over_six(double largest_scale, bool squared_error);

}  // namespace telens::ops
