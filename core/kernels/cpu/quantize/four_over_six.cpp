// quantize_four_over_six on the CPU.
#include "core/ops/four_over_six.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/block_scalings.h"
#include "core/kernels/cpu/quantize/block_tensors.h"
#include "core/ops/block_quantize_checks.h"
#include "core/ops/four_over_six_layout.h"

namespace telens::kernels {
namespace {

using four_over_six::kBlock;
using four_over_six::LineScales;
using four_over_six::Matrix;
using four_over_six::Output;
using ops::BlockCodes;

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
  library.impl("quantize_four_over_six", TORCH_FN(telens::kernels::quantize));
}
