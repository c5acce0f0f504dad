// Permutes token rows to experts and back on CUDA. FP64, used for gradient checks, calls LibTorch's
// operators.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/permutation/launchers.h"
#include "core/ops/checks.h"
#include "core/ops/row_exchange.h"

namespace telens::cuda {
namespace {

FormatId get_format(const at::Tensor& x) {
  return ops::check_high_precision("row_exchange", "x", x.scalar_type());
}

RowPlaces get_places(const at::Tensor& places, const at::Tensor& weights, std::int64_t rows) {
  return {.places = places.const_data_ptr<std::int32_t>(),
          .tokens = places.size(0),
          .slots = places.size(1),
          .token_stride = places.stride(0),
          .slot_stride = places.stride(1),
          .rows = rows,
          .weights = weights.defined() ? weights.const_data_ptr<float>() : nullptr};
}

at::Tensor contiguous_weights(const std::optional<at::Tensor>& weights) {
  return weights ? weights->contiguous() : at::Tensor();
}

// The row per place; `rows` if the place is empty.
at::Tensor rows_or_outside(const at::Tensor& places, std::int64_t rows) {
  return at::where((places < 0).logical_or(places >= rows), rows, places).to(at::kLong);
}

// Gathers x, with an appended row of zeros, by places: [tokens, slots, width].
at::Tensor gathered(const at::Tensor& x, const at::Tensor& places) {
  const at::Tensor outside = rows_or_outside(places, x.size(0));
  const at::Tensor padded = at::zeros({x.size(0) + 1, x.size(1)}, x.options());
  padded.narrow(0, 0, x.size(0)).copy_(x);
  return padded.index_select(0, outside.flatten())
      .view({places.size(0), places.size(1), x.size(1)});
}

at::Tensor spread_doubles(const at::Tensor& x, const at::Tensor& places, const at::Tensor& weights,
                          std::int64_t rows) {
  const at::Tensor products = x.unsqueeze(1) * weights.unsqueeze(2);
  at::Tensor y = at::zeros({rows + 1, x.size(1)}, x.options());
  y.index_put_({rows_or_outside(places, rows).flatten()}, products.flatten(0, 1));
  return y.narrow(0, 0, rows);
}

at::Tensor spread_rows_cuda(const at::Tensor& x, const at::Tensor& places,
                            const std::optional<at::Tensor>& weights, std::int64_t rows) {
  ops::check_spread_rows(x, places, weights, rows);
  const DeviceScope scope("spread_rows", x);
  if (weights && x.scalar_type() == at::kDouble) return spread_doubles(x, places, *weights, rows);
  const at::Tensor source = x.contiguous();
  const at::Tensor factors = contiguous_weights(weights);
  at::Tensor y = at::zeros({rows, x.size(1)}, x.options());
  RowExchangeArguments arguments{.places = get_places(places, factors, rows),
                                 .x = source.const_data_ptr(),
                                 .width = x.size(1),
                                 .y = y.mutable_data_ptr()};
  if (weights) {
    check_launch("spread_rows", launch_spread_products(arguments, get_format(x), scope.context()));
  } else {
    arguments.width *= static_cast<std::int64_t>(x.element_size());
    check_launch("spread_rows", launch_spread_copies(arguments, scope.context()));
  }
  return y;
}

at::Tensor combine_rows_cuda(const at::Tensor& x, const at::Tensor& places,
                             const std::optional<at::Tensor>& weights) {
  ops::check_combine_rows(x, places, weights);
  const DeviceScope scope("combine_rows", x);
  const bool copies = !weights && places.size(1) == 1;
  if (!copies && x.scalar_type() == at::kDouble) {
    const at::Tensor values = gathered(x, places);
    return (weights ? values * weights->unsqueeze(2) : values).sum(1);
  }
  const at::Tensor source = x.contiguous();
  const at::Tensor factors = contiguous_weights(weights);
  at::Tensor y = at::empty({places.size(0), x.size(1)}, x.options());
  RowExchangeArguments arguments{.places = get_places(places, factors, x.size(0)),
                                 .x = source.const_data_ptr(),
                                 .width = x.size(1),
                                 .y = y.mutable_data_ptr()};
  if (copies) {
    arguments.width *= static_cast<std::int64_t>(x.element_size());
    check_launch("combine_rows", launch_combine_copies(arguments, scope.context()));
  } else {
    check_launch("combine_rows", launch_combine_sums(arguments, get_format(x), scope.context()));
  }
  return y;
}

at::Tensor row_products_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places) {
  ops::check_row_products(x, y, places);
  const DeviceScope scope("row_products", x);
  if (x.scalar_type() == at::kDouble) return (gathered(x, places) * y.unsqueeze(1)).sum(2);
  const at::Tensor rows = x.contiguous();
  const at::Tensor tokens = y.contiguous();
  at::Tensor products = at::empty(places.sizes(), x.options().dtype(at::kFloat));
  check_launch("row_products",
               launch_row_products({.places = get_places(places, at::Tensor(), x.size(0)),
                                    .x = rows.const_data_ptr(),
                                    .y = tokens.const_data_ptr(),
                                    .width = x.size(1),
                                    .products = products.mutable_data_ptr<float>()},
                                   get_format(x), scope.context()));
  return products;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("spread_rows", TORCH_FN(telens::cuda::spread_rows_cuda));
  library.impl("combine_rows", TORCH_FN(telens::cuda::combine_rows_cuda));
  library.impl("row_products", TORCH_FN(telens::cuda::row_products_cuda));
}
