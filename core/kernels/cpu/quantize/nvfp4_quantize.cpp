// quantize_nvfp4 and quantize_four_over_six on the CPU.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "core/formats/philox.h"
#include "core/formats/stochastic_rounding.h"
#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/block_tiles.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/ops/block_quantize.h"
#include "core/ops/four_over_six_formula.h"
#include "core/ops/scale_formula.h"

namespace telens::kernels {
namespace {

using four_over_six::kBlock;
using four_over_six::LineScales;
using four_over_six::Matrix;
using four_over_six::Output;
using ops::BlockCodes;
using ops::SixTensors;

struct Nvfp4Scaling {
  using ScaleCode = std::uint8_t;
  static constexpr std::int64_t kBlock = block_length(ScalingMode::nvfp4);
  static constexpr NanInMaximum kNan = TwoLevelScaling::kNan;

  std::vector<TwoLevelScaling> scales;  // one for the tensor, or one per line
  std::optional<ElementWords> random;

  BlockScale<ScaleCode> get_scale(float amax, std::int64_t line) const {
    return scales[scales.size() == 1 ? 0 : static_cast<std::size_t>(line)].get_scale(amax);
  }

  void encode(const Elements& x, const float* factors, std::uint8_t* codes) const {
    if (random) {
      dispatch_element_type(x.format,
                            [&]<typename T>() { encode_by_chance<T>(x, factors, codes); });
    } else {
      quantize_range_by_scales(x.format, x.data, x.size, factors, FormatId::e2m1, codes);
    }
  }

 private:
  template <typename T>
  void encode_by_chance(const Elements& x, const float* factors, std::uint8_t* codes) const {
    const T* const elements = static_cast<const T*>(x.data);
    PhiloxCounter words{};
    for (std::size_t i = 0; i < x.size; ++i) {
      const auto index = static_cast<std::uint64_t>(x.index) + i;
      if (i == 0 || index % 4 == 0) words = random->of_four(index);
      const float value = static_cast<float>(elements[i]) * factors[i];
      codes[i] = encode_e2m1_stochastically(value, words[index % 4]);
    }
  }
};

// Packs two codes per byte: neighbors in a row, or neighbors in a column if transposed. codes:
// contiguous [rows, columns], one per byte.
at::Tensor pack(const at::Tensor& codes, bool transposed) {
  const std::int64_t rows = codes.size(0);
  const std::int64_t columns = codes.size(1);
  at::Tensor packed = transposed
                          ? at::empty({rounded_up_quotient(rows, 2), columns}, codes.options())
                          : at::empty({rows, rounded_up_quotient(columns, 2)}, codes.options());
  const auto* const from = codes.const_data_ptr<std::uint8_t>();
  auto* const to = packed.mutable_data_ptr<std::uint8_t>();
  const std::int64_t width = packed.size(1);
  const std::int64_t grain = kGrain / std::max<std::int64_t>(1, width) + 1;
  at::parallel_for(0, packed.size(0), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::uint8_t* const first = from + (transposed ? 2 * row : row) * columns;
      std::uint8_t* const bytes = to + row * width;
      if (transposed) {
        const bool has_second = 2 * row + 1 < rows;
        for (std::int64_t i = 0; i < width; ++i) {
          bytes[i] = first[i] | (has_second ? first[columns + i] << 4 : 0);
        }
      } else {
        for (std::int64_t i = 0; i < columns / 2; ++i) {
          bytes[i] = first[2 * i] | first[2 * i + 1] << 4;
        }
        if (columns % 2 != 0) bytes[width - 1] = first[columns - 1];
      }
    }
  });
  return transposed ? packed.t() : packed;
}

// amaxes: indexed by orientation, 0 rowwise or 1 columnwise; if missing, the tensor's amax is used.
Nvfp4Scaling scaling_for(const at::Tensor& contiguous, FormatId format,
                         const std::optional<at::Tensor>& amaxes, std::int64_t orientation) {
  const float amax =
      amaxes ? (*amaxes)[orientation].item<float>() : largest_number(as_matrix(contiguous, format));
  return {{TwoLevelScaling::of(amax)}, std::nullopt};
}

Nvfp4Scaling scaling_of_lines(const at::Tensor& x, std::int64_t orientation) {
  const at::Tensor amaxes = ops::largest_numbers(x, orientation);
  Nvfp4Scaling scaling;
  for (std::int64_t line = 0; line < amaxes.numel(); ++line) {
    scaling.scales.push_back(TwoLevelScaling::of(amaxes.const_data_ptr<float>()[line]));
  }
  return scaling;
}

// orientation: 0 rowwise, 1 columnwise.
ElementWords random_words(const at::Tensor& state, std::uint32_t orientation) {
  const at::Tensor words = state.contiguous();
  return ElementWords::of(words.const_data_ptr<std::int64_t>(), orientation);
}

// codes: one per byte, as returned by quantize_blocks and quantize_squares.
BlockCodes packed(const BlockCodes& quantized, const Nvfp4Scaling& scaling, bool transposed) {
  const auto count = static_cast<std::int64_t>(scaling.scales.size());
  const at::Tensor tensor_scale = at::empty({count}, quantized.codes.options().dtype(at::kFloat));
  std::ranges::transform(scaling.scales, tensor_scale.mutable_data_ptr<float>(),
                         &TwoLevelScaling::tensor_scale);
  return {pack(transposed ? quantized.codes.t() : quantized.codes, transposed), quantized.scale_inv,
          tensor_scale};
}

// x: contiguous.
ops::BlockCodesPair quantize_along_lines(const at::Tensor& x, FormatId format,
                                         std::optional<std::int64_t> hadamard_signs,
                                         const std::optional<at::Tensor>& random_state,
                                         const std::optional<at::Tensor>& amaxes,
                                         const ops::Orientations& orientations) {
  ops::BlockCodesPair pair;
  // One read, since both orientations have the same elements.
  const bool together = !hadamard_signs && !random_state;
  if (orientations.rowwise || together) {
    Nvfp4Scaling scaling = scaling_for(x, format, amaxes, 0);
    if (random_state) scaling.random = random_words(*random_state, 0);
    const auto [rowwise, columnwise] =
        quantize_blocks(x, format, ScalingMode::nvfp4, scaling,
                        {orientations.rowwise, orientations.columnwise && together});
    if (orientations.rowwise) pair.rowwise = packed(rowwise, scaling, false);
    if (columnwise.codes.defined()) pair.columnwise = packed(columnwise, scaling, true);
  }
  if (orientations.columnwise && !together) {
    const at::Tensor rotated =
        hadamard_signs ? ops::hadamard_transform(x, static_cast<std::uint16_t>(*hadamard_signs))
                       : x;
    Nvfp4Scaling scaling = scaling_for(rotated, format, amaxes, 1);
    if (random_state) scaling.random = random_words(*random_state, 1);
    pair.columnwise = packed(
        quantize_blocks(rotated, format, ScalingMode::nvfp4, scaling, {false, true}).columnwise,
        scaling, true);
  }
  return pair;
}

// Quantizes with a scale per row and a scale per column.
ops::BlockCodesPair quantize_by_lines(const at::Tensor& x, FormatId format,
                                      const ops::Orientations& orientations) {
  ops::BlockCodesPair pair;
  if (orientations.rowwise) {
    const Nvfp4Scaling scaling = scaling_of_lines(x, 0);
    pair.rowwise =
        packed(quantize_blocks(x, format, ScalingMode::nvfp4, scaling, {true, false}).rowwise,
               scaling, false);
  }
  if (orientations.columnwise) {
    const Nvfp4Scaling scaling = scaling_of_lines(x, 1);
    pair.columnwise =
        packed(quantize_blocks(x, format, ScalingMode::nvfp4, scaling, {false, true}).columnwise,
               scaling, true);
  }
  return pair;
}

ops::BlockCodesPair quantize_in_squares(const at::Tensor& x, FormatId format,
                                        const std::optional<at::Tensor>& random_state,
                                        const std::optional<at::Tensor>& amaxes,
                                        const ops::Orientations& orientations) {
  Nvfp4Scaling scaling = scaling_for(x, format, amaxes, 0);
  if (random_state) scaling.random = random_words(*random_state, 0);
  const auto [codes, squares, none] = quantize_squares(x, format, scaling);
  const auto repeated = [](const at::Tensor& scales, std::int64_t rows) {
    return ops::repeat_scales(scales, Nvfp4Scaling::kBlock, rows);
  };
  ops::BlockCodesPair pair;
  if (orientations.rowwise) {
    pair.rowwise = packed({codes, repeated(squares, x.size(0)), {}}, scaling, false);
  }
  if (orientations.columnwise) {
    pair.columnwise = packed({codes.t(), repeated(squares.t(), x.size(1)), {}}, scaling, true);
  }
  return pair;
}

SixTensors quantize_nvfp4(const at::Tensor& x, bool two_dimensional,
                          std::optional<std::int64_t> hadamard_signs,
                          const std::optional<at::Tensor>& random_state, bool rowwise,
                          bool columnwise, const std::optional<at::Tensor>& amaxes,
                          bool row_scaled) {
  ops::check_nvfp4(x, two_dimensional, hadamard_signs, random_state, columnwise, row_scaled);
  ops::check_amaxes("quantize_nvfp4", x, amaxes);
  ops::check_row_scaled("quantize_nvfp4", row_scaled, two_dimensional, amaxes);
  const FormatId format = ops::check_matrix("quantize_nvfp4", x);
  const at::Tensor contiguous = x.contiguous();
  const ops::Orientations orientations{rowwise, columnwise};
  if (row_scaled) return as_six_tensors(quantize_by_lines(contiguous, format, orientations));
  return as_six_tensors(
      two_dimensional ? quantize_in_squares(contiguous, format, random_state, amaxes, orientations)
                      : quantize_along_lines(contiguous, format, hadamard_signs, random_state,
                                             amaxes, orientations));
}

template <typename T>
struct Load {
  const T* elements;
  float operator()(std::int64_t index) const { return static_cast<float>(elements[index]); }
};

Output get_output(const BlockCodes& codes) {
  if (!codes.codes.defined()) return {nullptr, nullptr};
  return {codes.codes.mutable_data_ptr<std::uint8_t>(),
          codes.scale_inv.mutable_data_ptr<std::uint8_t>()};
}

// Calls visit(i) for each of `count` pieces of `elements` elements.
template <typename Visit>
void for_each(std::int64_t count, std::int64_t elements, const Visit& visit) {
  at::parallel_for(0, count, kGrain / elements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) visit(i);
  });
}

// The amaxes from which the scales of an orientation (0 rowwise, 1 columnwise) are computed.
at::Tensor find_amaxes(const at::Tensor& contiguous, FormatId format, std::int64_t orientation,
                       const std::optional<at::Tensor>& given, bool row_scaled) {
  if (row_scaled) return ops::largest_numbers(contiguous, orientation);
  if (given) return given->narrow(0, orientation, 1);
  return at::full({1}, largest_number(as_matrix(contiguous, format)),
                  contiguous.options().dtype(at::kFloat));
}

void fill_tensor_scale(const BlockCodes& codes, const LineScales& scales) {
  if (!codes.codes.defined()) return;
  auto* const made = codes.tensor_scale.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < codes.tensor_scale.numel(); ++i) made[i] = scales.tensor_scale(i);
}

ops::SixTensors quantize(const at::Tensor& x, bool two_dimensional, bool squared_error,
                         double largest_scale, bool rowwise, bool columnwise,
                         const std::optional<at::Tensor>& amaxes, bool row_scaled) {
  constexpr const char* kOperation = "quantize_four_over_six";
  const FormatId format = ops::check_matrix(kOperation, x);
  const FourOverSix choice = ops::check_four_over_six(largest_scale, squared_error);
  ops::check_amaxes(kOperation, x, amaxes);
  ops::check_row_scaled(kOperation, row_scaled, two_dimensional, amaxes);
  const at::Tensor contiguous = x.contiguous();
  const at::Tensor amaxes_of_rows = find_amaxes(contiguous, format, 0, amaxes, row_scaled);
  const at::Tensor amaxes_of_columns = (amaxes || row_scaled) && !two_dimensional
                                           ? find_amaxes(contiguous, format, 1, amaxes, row_scaled)
                                           : amaxes_of_rows;
  const LineScales along_rows{amaxes_of_rows.const_data_ptr<float>(), row_scaled, choice};
  const LineScales down_columns{amaxes_of_columns.const_data_ptr<float>(), row_scaled, choice};
  const ops::BlockCodesPair pair =
      ops::empty_packed_pair(x, two_dimensional, {rowwise, columnwise}, row_scaled);
  fill_tensor_scale(pair.rowwise, along_rows);
  fill_tensor_scale(pair.columnwise, down_columns);

  const Matrix matrix{x.size(0), x.size(1)};
  const Output by_rows = get_output(pair.rowwise);
  const Output by_columns = get_output(pair.columnwise);
  dispatch_element_type(format, [&]<typename T>() {
    const Load<T> load{contiguous.const_data_ptr<T>()};
    if (two_dimensional) {
      for_each(matrix.blocks_down() * matrix.blocks_across(), kBlock * kBlock,
               [&](std::int64_t square) {
                 quantize_square(load, matrix, along_rows, by_rows, by_columns, square);
               });
      return;
    }
    if (rowwise) {
      for_each(matrix.rows * matrix.blocks_across(), kBlock, [&](std::int64_t block) {
        quantize_along_row(load, matrix, along_rows, by_rows, block);
      });
    }
    if (columnwise) {
      for_each(matrix.blocks_down() * matrix.columns, kBlock, [&](std::int64_t block) {
        quantize_down_column(load, matrix, down_columns, by_columns, block);
      });
    }
  });
  return as_six_tensors(pair);
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("quantize_nvfp4", TORCH_FN(telens::kernels::quantize_nvfp4));
  library.impl("quantize_four_over_six", TORCH_FN(telens::kernels::quantize));
}
