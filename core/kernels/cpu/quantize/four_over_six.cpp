// quantize_four_over_six on the CPU.
#include "core/ops/four_over_six.h"

#include <ATen/Parallel.h>
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
using four_over_six::Matrix;
using four_over_six::Output;
using four_over_six::TensorScale;
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

// visit(i) for each of `count` pieces of `elements` elements.
template <typename Visit>
void for_each(std::int64_t count, std::int64_t elements, const Visit& visit) {
  at::parallel_for(0, count, kGrain / elements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) visit(i);
  });
}

ops::SixTensors quantize(const at::Tensor& x, bool two_dimensional, bool squared_error,
                         double largest_scale, bool rowwise, bool columnwise,
                         const std::optional<at::Tensor>& amaxes) {
  constexpr const char* kOperation = "quantize_four_over_six";
  const FormatId format = ops::check_matrix(kOperation, x);
  const FourOverSix choice = ops::check_four_over_six(largest_scale, squared_error);
  ops::check_amaxes(kOperation, x, amaxes);
  const at::Tensor contiguous = x.contiguous();
  const auto get_scale = [&](std::int64_t orientation) {
    return TensorScale::of(amaxes ? amaxes->accessor<float, 1>()[orientation]
                                  : largest_number(as_matrix(contiguous, format)),
                           choice);
  };
  const TensorScale along_rows = get_scale(0);
  const TensorScale down_columns = amaxes && !two_dimensional ? get_scale(1) : along_rows;
  const ops::BlockCodesPair pair =
      ops::empty_packed_pair(x, two_dimensional, {rowwise, columnwise});
  if (rowwise) pair.rowwise.tensor_scale.fill_(along_rows.scaling.tensor_scale);
  if (columnwise) pair.columnwise.tensor_scale.fill_(down_columns.scaling.tensor_scale);

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
