#include "core/ops/block_quantize.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>
#include <tuple>

#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"
#include "core/ops/quantize.h"
#include "core/ops/tensor_utils.h"

namespace telens::ops {
namespace {

BlockCodesPair as_pair(FourTensors tensors) {
  auto& [codes, scale_inv, column_codes, column_scale_inv] = tensors;
  return {{codes, scale_inv, {}}, {column_codes, column_scale_inv, {}}};
}

FourTensors quantize_mxfp8_meta(const at::Tensor& x, std::int64_t format, std::int64_t rounding,
                                bool, bool rowwise, bool columnwise) {
  check_matrix("quantize_mxfp8", x);
  check_fp8_format("quantize_mxfp8", format);
  check_scale_rounding("quantize_mxfp8", rounding);
  return as_four_tensors(
      empty_block_codes(x, ScalingMode::mxfp8, at::kByte, {rowwise, columnwise}));
}

FourTensors quantize_mxfp6_meta(const at::Tensor& x, std::int64_t format, std::int64_t rounding,
                                bool, bool rowwise, bool columnwise) {
  check_matrix("quantize_mxfp6", x);
  check_scale_rounding("quantize_mxfp6", rounding);
  return as_four_tensors(empty_block_codes(x, check_mxfp6_format("quantize_mxfp6", format),
                                           at::kByte, {rowwise, columnwise}));
}

FourTensors quantize_fp8_blocks_meta(const at::Tensor& x, std::int64_t format, bool two_dimensional,
                                     bool, double, bool rowwise, bool columnwise) {
  check_matrix("quantize_fp8_blocks", x);
  check_fp8_format("quantize_fp8_blocks", format);
  return as_four_tensors(
      empty_block_codes(x, two_dimensional ? ScalingMode::block_2d : ScalingMode::block_1d,
                        at::kFloat, {rowwise, columnwise}));
}

SixTensors quantize_nvfp4_meta(const at::Tensor& x, bool two_dimensional,
                               std::optional<std::int64_t> hadamard_signs,
                               const std::optional<at::Tensor>& random_state, bool rowwise,
                               bool columnwise, const std::optional<at::Tensor>& amaxes,
                               bool row_scaled) {
  check_nvfp4(x, two_dimensional, hadamard_signs, random_state, columnwise, row_scaled);
  check_amaxes("quantize_nvfp4", x, amaxes);
  check_row_scaled("quantize_nvfp4", row_scaled, two_dimensional, amaxes);
  return as_six_tensors(empty_packed_pair(x, two_dimensional, {rowwise, columnwise}, row_scaled));
}

at::Tensor hadamard_transform_meta(const at::Tensor& x, std::int64_t signs, bool) {
  check_hadamard("hadamard_transform", x, signs);
  return at::empty(x.sizes(), x.options());
}

at::Tensor dequantize_blocks_meta(const at::Tensor& codes, const at::Tensor& scale_inv,
                                  const std::optional<at::Tensor>& tensor_scale,
                                  std::int64_t format, std::int64_t mode, at::ScalarType dtype) {
  const auto [element, scaling] = check_block_codes(
      "dequantize_blocks", {codes, scale_inv, tensor_scale.value_or(at::Tensor())}, format, mode);
  check_high_precision("dequantize_blocks", "the result", dtype);
  if (!scheme(scaling).is_packed()) return empty_values(codes, dtype);
  const std::int64_t columns = scheme(scaling).codes_per_byte() * codes.size(1);
  return is_transposed(codes)
             ? at::empty({columns, codes.size(0)}, codes.options().dtype(dtype)).t()
             : at::empty({codes.size(0), columns}, codes.options().dtype(dtype));
}

BlockCodes empty_orientation(std::int64_t rows, std::int64_t columns, ScalingMode mode,
                             at::ScalarType scale_dtype, const at::TensorOptions& options) {
  return {at::empty({rows, columns}, options.dtype(at::kByte)),
          at::empty({rounded_up_quotient(rows, block_height(mode)),
                     rounded_up_quotient(columns, block_length(mode))},
                    options.dtype(scale_dtype)),
          {}};
}

at::ScalarType get_scale_dtype(ScalingMode mode) {
  return scheme(mode).scale_format == FormatId::fp32 ? at::kFloat : at::kByte;
}

void check_scales_of_rows(std::string_view operation, const at::Tensor& scales,
                          const at::Tensor& codes) {
  if (scales.scalar_type() != at::kFloat || scales.dim() != 1 || scales.size(0) != codes.size(0) ||
      !scales.is_contiguous() || scales.device() != codes.device()) {
    raise<ShapeError>(
        "{}: tensor_scale has dtype {} and shape {} on {}; expected Float with 1 element or, one "
        "for each row of the codes, [{}], on {}",
        operation, c10::toString(scales.scalar_type()), c10::str(scales.sizes()),
        scales.device().str(), codes.size(0), codes.device().str());
  }
}

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

FormatId check_matrix(std::string_view operation, const at::Tensor& x) {
  if (x.dim() != 2) {
    raise<ShapeError>("{}: x has shape {}; expected a matrix [rows, columns]; flatten it",
                      operation, c10::str(x.sizes()));
  }
  return check_high_precision(operation, "x", x.scalar_type());
}

ScaleRounding check_scale_rounding(std::string_view operation, std::int64_t rounding) {
  if (rounding < 0 || rounding > static_cast<std::int64_t>(ScaleRounding::nearest)) {
    raise<UsageError>("{}: scale_rounding is {}; expected up (0), floor (1) or nearest (2)",
                      operation, rounding);
  }
  return static_cast<ScaleRounding>(rounding);
}

ScalingMode check_block_mode(std::string_view operation, std::int64_t mode) {
  if (mode <= static_cast<std::int64_t>(ScalingMode::tensor) ||
      mode >= std::ssize(kAllScalingModes)) {
    raise<UsageError>("{}: scaling mode {}; expected one of blocks: 1 to {}", operation, mode,
                      kAllScalingModes.size() - 1);
  }
  return static_cast<ScalingMode>(mode);
}

bool is_transposed(const at::Tensor& matrix) {
  return !matrix.is_contiguous() && matrix.t().is_contiguous();
}

FormatId check_element_format(std::string_view operation, std::int64_t format, ScalingMode mode) {
  const std::optional<FormatId> element = scheme(mode).element;
  if (!element) return check_fp8_format(operation, format);
  if (format != static_cast<std::int64_t>(*element)) {
    raise<UsageError>("{}: format is {}; {} has {} ({})", operation, format, get_name(mode),
                      get_name(*element), static_cast<int>(*element));
  }
  return *element;
}

ScalingMode check_mxfp6_format(std::string_view operation, std::int64_t format) {
  for (const ScalingMode mode : {ScalingMode::mxfp6_e3m2, ScalingMode::mxfp6_e2m3}) {
    if (static_cast<std::int64_t>(*scheme(mode).element) == format) return mode;
  }
  raise<UsageError>("{}: format is {}; expected an MXFP6 format: E3M2 (7) or E2M3 (8)", operation,
                    format);
}

void check_kernels(std::string_view operation, ScalingMode mode, const at::Tensor& tensor) {
  if (!tensor.device().is_cuda() || scheme(mode).has_cuda_kernels) return;
  raise<UsageError>("{}: {} has no CUDA kernels; move the tensor to the CPU or use another format",
                    operation, get_name(mode));
}

BlockCodesFormats check_block_codes(std::string_view operation, const BlockCodes& quantized,
                                    std::int64_t format, std::int64_t mode) {
  const auto& [codes, scale_inv, tensor_scale] = quantized;
  const ScalingMode scaling = check_block_mode(operation, mode);
  const FormatId element = check_element_format(operation, format, scaling);
  check_kernels(operation, scaling, codes);
  if (codes.scalar_type() != at::kByte || codes.dim() != 2) {
    raise<ShapeError>(
        "{}: codes have dtype {} and shape {}; expected Byte (uint8), [rows, columns]", operation,
        c10::toString(codes.scalar_type()), c10::str(codes.sizes()));
  }
  const at::ScalarType scale_dtype = get_scale_dtype(scaling);
  const std::int64_t rows = rounded_up_quotient(codes.size(0), block_height(scaling));
  const std::int64_t columns =
      rounded_up_quotient(codes.size(1) * scheme(scaling).codes_per_byte(), block_length(scaling));
  if (scale_inv.scalar_type() != scale_dtype || scale_inv.dim() != 2 || scale_inv.size(0) != rows ||
      scale_inv.size(1) != columns) {
    raise<ShapeError>(
        "{}: scale_inv has dtype {} and shape {}; {} codes of shape {} need {} [{}, {}]", operation,
        c10::toString(scale_inv.scalar_type()), c10::str(scale_inv.sizes()), get_name(scaling),
        c10::str(codes.sizes()), c10::toString(scale_dtype), rows, columns);
  }
  if (tensor_scale.defined() && tensor_scale.numel() != 1) {
    check_scales_of_rows(operation, tensor_scale, codes);
  } else if (tensor_scale.defined()) {
    check_one_float(operation, "tensor_scale", tensor_scale, codes);
  }
  return {element, scaling};
}

BlockCodes empty_packed_codes(std::int64_t rows, std::int64_t columns, bool transposed,
                              const at::TensorOptions& options) {
  const auto bytes = [&](std::int64_t height, std::int64_t width) {
    const at::TensorOptions as_bytes = options.dtype(at::kByte);
    return transposed ? at::empty({width, height}, as_bytes).t()
                      : at::empty({height, width}, as_bytes);
  };
  return {bytes(rows, rounded_up_quotient(columns, 2)),
          bytes(rows, rounded_up_quotient(columns, block_length(ScalingMode::nvfp4))),
          at::empty({1}, options.dtype(at::kFloat))};
}

BlockCodesPair empty_packed_pair(const at::Tensor& x, bool squares,
                                 const Orientations& orientations, bool row_scaled) {
  BlockCodesPair pair;
  if (orientations.rowwise) {
    pair.rowwise = empty_packed_codes(x.size(0), x.size(1), false, x.options());
  }
  if (orientations.columnwise) {
    pair.columnwise = empty_packed_codes(x.size(1), x.size(0), true, x.options());
    at::Tensor& scales = pair.columnwise.scale_inv;
    if (squares) scales = at::empty(scales.sizes(), scales.options());
  }
  if (row_scaled) {
    for (BlockCodes* codes : {&pair.rowwise, &pair.columnwise}) {
      if (!codes->codes.defined()) continue;
      codes->tensor_scale = at::empty({codes->codes.size(0)}, codes->tensor_scale.options());
    }
  }
  return pair;
}

void check_hadamard(std::string_view operation, const at::Tensor& x, std::int64_t signs) {
  check_matrix(operation, x);
  if (signs < 0 || signs > 0xffff) {
    raise<UsageError>("{}: signs are {}; expected 16 bits", operation, signs);
  }
  if (x.size(0) % kHadamardSize != 0) {
    raise<ShapeError>(
        "{}: x has shape {}; the random Hadamard transform needs rows divisible by {}; pad them, "
        "or "
        "switch the transform off",
        operation, c10::str(x.sizes()), kHadamardSize);
  }
}

void check_nvfp4(const at::Tensor& x, bool two_dimensional,
                 std::optional<std::int64_t> hadamard_signs,
                 const std::optional<at::Tensor>& random_state, bool columnwise, bool row_scaled) {
  check_matrix("quantize_nvfp4", x);
  if (row_scaled && (hadamard_signs || random_state)) {
    raise<UsageError>("quantize_nvfp4: row_scaled excludes {}; disable one of them",
                      hadamard_signs ? "the random Hadamard transform" : "stochastic rounding");
  }
  if (two_dimensional && hadamard_signs) {
    raise<UsageError>(
        "quantize_nvfp4: 16x16 blocks, the same in both orientations, exclude the random Hadamard "
        "transform, which only the columnwise one gets; disable one of them");
  }
  if (hadamard_signs && columnwise) check_hadamard("quantize_nvfp4", x, *hadamard_signs);
  if (random_state && (random_state->scalar_type() != at::kLong || random_state->numel() != 2 ||
                       random_state->device() != x.device())) {
    raise<ShapeError>(
        "quantize_nvfp4: random_state has dtype {} and {} elements on {}; expected "
        "Long with 2 elements on {}",
        c10::toString(random_state->scalar_type()), random_state->numel(),
        random_state->device().str(), x.device().str());
  }
}

void check_amaxes(std::string_view operation, const at::Tensor& x,
                  const std::optional<at::Tensor>& amaxes) {
  if (amaxes && (amaxes->scalar_type() != at::kFloat || amaxes->dim() != 1 ||
                 amaxes->size(0) != 2 || amaxes->device() != x.device())) {
    raise<ShapeError>("{}: amaxes has dtype {} and shape {} on {}; expected Float [2] on {}",
                      operation, c10::toString(amaxes->scalar_type()), c10::str(amaxes->sizes()),
                      amaxes->device().str(), x.device().str());
  }
}

void check_row_scaled(std::string_view operation, bool row_scaled, bool two_dimensional,
                      const std::optional<at::Tensor>& amaxes) {
  if (!row_scaled || (!two_dimensional && !amaxes)) return;
  raise<UsageError>(
      "{}: row_scaled, a scale for each row, excludes {}; disable one of them", operation,
      two_dimensional ? "16x16 blocks, which reach over rows" : "amaxes, which are of the tensor");
}

at::Tensor largest_numbers(const at::Tensor& x, std::int64_t dimension) {
  const std::int64_t across = 1 - dimension;
  if (x.size(across) == 0) {
    return at::zeros({x.size(dimension)}, x.options().dtype(at::kFloat));
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return at::nan_to_num(x, 0, kInfinity, -kInfinity).abs_().amax(across).to(at::kFloat);
}

BlockCodesPair empty_block_codes(const at::Tensor& x, ScalingMode mode, at::ScalarType scale_dtype,
                                 const Orientations& orientations) {
  BlockCodesPair pair;
  const at::TensorOptions options = x.options();
  if (orientations.rowwise) {
    pair.rowwise = empty_orientation(x.size(0), x.size(1), mode, scale_dtype, options);
  }
  if (orientations.columnwise) {
    // Memory in x's order: [rows, columns] codes under [rows / block, columns] scales.
    const std::int64_t blocks = rounded_up_quotient(x.size(0), block_length(mode));
    const std::int64_t across = rounded_up_quotient(x.size(1), block_height(mode));
    pair.columnwise = {at::empty(x.sizes(), options.dtype(at::kByte)).t(),
                       at::empty({blocks, across}, options.dtype(scale_dtype)).t(),
                       {}};
  }
  return pair;
}

at::Tensor repeat_scales(const at::Tensor& squares, std::int64_t block, std::int64_t rows) {
  return squares.repeat_interleave(block, 0).narrow(0, 0, rows).contiguous();
}

BlockCodesPair quantize_mxfp8(const at::Tensor& x, FormatId format, const Mxfp8Options& options,
                              const Orientations& orientations) {
  static const auto op = find_operator<decltype(quantize_mxfp8_meta)>("telens::quantize_mxfp8");
  return as_pair(op.call(x, static_cast<std::int64_t>(format),
                         static_cast<std::int64_t>(options.scale_rounding), options.two_dimensional,
                         orientations.rowwise, orientations.columnwise));
}

BlockCodesPair quantize_mxfp6(const at::Tensor& x, FormatId format, const Mxfp8Options& options,
                              const Orientations& orientations) {
  static const auto op = find_operator<decltype(quantize_mxfp6_meta)>("telens::quantize_mxfp6");
  const auto number = static_cast<std::int64_t>(format);
  check_kernels("quantize_mxfp6", check_mxfp6_format("quantize_mxfp6", number), x);
  return as_pair(op.call(x, number, static_cast<std::int64_t>(options.scale_rounding),
                         options.two_dimensional, orientations.rowwise, orientations.columnwise));
}

BlockCodesPair quantize_fp8_blocks(const at::Tensor& x, FormatId format,
                                   const Fp8BlockOptions& options,
                                   const Orientations& orientations) {
  static const auto op =
      find_operator<decltype(quantize_fp8_blocks_meta)>("telens::quantize_fp8_blocks");
  return as_pair(op.call(x, static_cast<std::int64_t>(format), options.two_dimensional,
                         options.power_of_2_scales, options.amax_epsilon, orientations.rowwise,
                         orientations.columnwise));
}

BlockCodesPair quantize_nvfp4(const at::Tensor& x, const Nvfp4Options& options,
                              const Orientations& orientations) {
  static const auto op = find_operator<decltype(quantize_nvfp4_meta)>("telens::quantize_nvfp4");
  const auto [codes, scale_inv, tensor_scale, column_codes, column_scale_inv, column_tensor_scale] =
      op.call(x, options.two_dimensional, options.hadamard_signs, if_defined(options.random_state),
              orientations.rowwise, orientations.columnwise, if_defined(options.amaxes),
              options.row_scaled);
  return {{codes, scale_inv, tensor_scale}, {column_codes, column_scale_inv, column_tensor_scale}};
}

at::Tensor hadamard_transform(const at::Tensor& x, std::uint16_t signs, bool inverse) {
  static const auto op =
      find_operator<decltype(hadamard_transform_meta)>("telens::hadamard_transform");
  return op.call(x, signs, inverse);
}

at::Tensor dequantize_blocks(const BlockCodes& quantized, FormatId format, ScalingMode mode,
                             at::ScalarType dtype) {
  static const auto op =
      find_operator<decltype(dequantize_blocks_meta)>("telens::dequantize_blocks");
  return op.call(quantized.codes, quantized.scale_inv, if_defined(quantized.tensor_scale),
                 static_cast<std::int64_t>(format), static_cast<std::int64_t>(mode), dtype);
}

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
  library.impl("quantize_mxfp8", TORCH_FN(telens::ops::quantize_mxfp8_meta));
  library.impl("quantize_mxfp6", TORCH_FN(telens::ops::quantize_mxfp6_meta));
  library.impl("quantize_fp8_blocks", TORCH_FN(telens::ops::quantize_fp8_blocks_meta));
  library.impl("quantize_nvfp4", TORCH_FN(telens::ops::quantize_nvfp4_meta));
  library.impl("hadamard_transform", TORCH_FN(telens::ops::hadamard_transform_meta));
  library.impl("dequantize_blocks", TORCH_FN(telens::ops::dequantize_blocks_meta));
  library.impl("quantize_four_over_six", TORCH_FN(telens::ops::quantize_four_over_six_meta));
}
