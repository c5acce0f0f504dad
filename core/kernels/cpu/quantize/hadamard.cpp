// hadamard_transform on the CPU, in FP32: sixteen rows and a few columns at a time.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/grain.h"
#include "core/ops/block_quantize.h"

namespace telens::kernels {
namespace {

constexpr std::int64_t kSize = ops::kHadamardSize;
// Columns that are transformed together.
constexpr std::int64_t kWidth = 64;

using Columns = std::array<float, kWidth>;
using Rows = std::array<Columns, kSize>;

// Sums and differences of rows 1, 2, 4 and 8 apart, then a multiplication by 1/4. The definition
// requires FP32 additions in this order.
void transform(Rows& rows) {
  for (std::int64_t distance = 1; distance < kSize; distance *= 2) {
    for (std::int64_t i = 0; i < kSize; ++i) {
      if ((i & distance) != 0) continue;
      for (std::int64_t c = 0; c < kWidth; ++c) {
        const float sum = rows[i][c] + rows[i + distance][c];
        const float difference = rows[i][c] - rows[i + distance][c];
        rows[i][c] = sum;
        rows[i + distance][c] = difference;
      }
    }
  }
  for (Columns& row : rows) {
    for (float& value : row) value *= 0.25F;  // 1 / sqrt(16)
  }
}

void flip_signs(Rows& rows, std::int64_t signs) {
  for (std::int64_t i = 0; i < kSize; ++i) {
    if ((signs >> i & 1) == 0) continue;
    for (float& value : rows[i]) value = -value;
  }
}

// x, y: the first of sixteen rows with `stride` elements each, at the first of `width` columns.
template <typename T>
void transform_columns(const T* x, T* y, std::int64_t stride, std::int64_t width,
                       std::int64_t signs, bool inverse) {
  Rows rows{};
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t c = 0; c < width; ++c) rows[i][c] = static_cast<float>(x[i * stride + c]);
  }
  if (!inverse) flip_signs(rows, signs);
  transform(rows);
  if (inverse) flip_signs(rows, signs);
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t c = 0; c < width; ++c) y[i * stride + c] = static_cast<T>(rows[i][c]);
  }
}

at::Tensor hadamard_transform(const at::Tensor& x, std::int64_t signs, bool inverse) {
  ops::check_hadamard("hadamard_transform", x, signs);
  const FormatId format = ops::check_matrix("hadamard_transform", x);
  const at::Tensor contiguous = x.contiguous();
  at::Tensor result = at::empty(x.sizes(), x.options());
  const std::int64_t columns = x.size(1);
  dispatch_element_type(format, [&]<typename T>() {
    const T* const from = contiguous.const_data_ptr<T>();
    T* const to = result.mutable_data_ptr<T>();
    const std::int64_t grain = kGrain / std::max<std::int64_t>(1, kSize * columns) + 1;
    at::parallel_for(0, x.size(0) / kSize, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t strip = begin; strip < end; ++strip) {
        for (std::int64_t column = 0; column < columns; column += kWidth) {
          const std::int64_t first = strip * kSize * columns + column;
          transform_columns(from + first, to + first, columns, std::min(kWidth, columns - column),
                            signs, inverse);
        }
      }
    });
  });
  return result;
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("hadamard_transform", TORCH_FN(telens::kernels::hadamard_transform));
}
