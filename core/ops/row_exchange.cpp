#include "core/ops/row_exchange.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <limits>
#include <string_view>

#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"

namespace telens::ops {
namespace {

void check_matrix(std::string_view operation, std::string_view name, const at::Tensor& x) {
  if (x.dim() != 2) {
    raise<ShapeError>("{}: {} has shape {}; expected two dimensions, [rows, width]", operation,
                      name, c10::str(x.sizes()));
  }
}

void check_places(std::string_view operation, const at::Tensor& places,
                  const std::optional<at::Tensor>& weights, const at::Tensor& x) {
  if (places.dim() != 2 || places.scalar_type() != at::kInt || places.device() != x.device()) {
    raise<ShapeError>(
        "{}: places is {} of shape {} on {}; expected Int [tokens, slots] on the device of the "
        "values, {}",
        operation, c10::toString(places.scalar_type()), c10::str(places.sizes()),
        places.device().str(), x.device().str());
  }
  if (!weights) return;
  const at::ScalarType expected = summed_dtype(x.scalar_type());
  if (weights->sizes() != places.sizes() || weights->scalar_type() != expected ||
      weights->device() != x.device()) {
    raise<ShapeError>("{}: weights are {} of shape {} on {}; expected {} {} on {}", operation,
                      c10::toString(weights->scalar_type()), c10::str(weights->sizes()),
                      weights->device().str(), c10::toString(expected), c10::str(places.sizes()),
                      x.device().str());
  }
}

void check_summed(std::string_view operation, const at::Tensor& x) {
  if (x.scalar_type() != at::kDouble) check_high_precision(operation, "x", x.scalar_type());
}

void check_tokens(std::string_view operation, std::string_view name, const at::Tensor& x,
                  const at::Tensor& places) {
  if (x.size(0) != places.size(0)) {
    raise<ShapeError>("{}: {} has {} rows; expected one for each of the {} tokens in places",
                      operation, name, x.size(0), places.size(0));
  }
}

using SpreadSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, std::int64_t);
using CombineSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                    const std::optional<at::Tensor>&);
using ProductsSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&);

}  // namespace

void check_spread_rows(const at::Tensor& x, const at::Tensor& places,
                       const std::optional<at::Tensor>& weights, std::int64_t rows) {
  check_matrix("spread_rows", "x", x);
  check_places("spread_rows", places, weights, x);
  check_tokens("spread_rows", "x", x, places);
  if (weights) check_summed("spread_rows", x);
  if (rows < 0 || rows > std::numeric_limits<std::int32_t>::max()) {
    raise<ShapeError>("spread_rows: {} rows; expected 0 to 2^31 - 1, which places can name", rows);
  }
}

void check_combine_rows(const at::Tensor& x, const at::Tensor& places,
                        const std::optional<at::Tensor>& weights) {
  check_matrix("combine_rows", "x", x);
  check_places("combine_rows", places, weights, x);
  if (weights || places.size(1) != 1) check_summed("combine_rows", x);
}

void check_row_products(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places) {
  check_matrix("row_products", "x", x);
  check_matrix("row_products", "y", y);
  check_places("row_products", places, std::nullopt, x);
  check_tokens("row_products", "y", y, places);
  check_summed("row_products", x);
  if (x.scalar_type() != y.scalar_type() || x.size(1) != y.size(1) || x.device() != y.device()) {
    raise<ShapeError>("row_products: x is {} of width {}, y {} of width {}; expected the same",
                      c10::toString(x.scalar_type()), x.size(1), c10::toString(y.scalar_type()),
                      y.size(1));
  }
}

at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& places,
                       const std::optional<at::Tensor>& weights, std::int64_t rows) {
  static const auto handle = find_operator<SpreadSignature>("telens::spread_rows");
  return handle.call(x, places, weights, rows);
}

at::Tensor combine_rows(const at::Tensor& x, const at::Tensor& places,
                        const std::optional<at::Tensor>& weights) {
  static const auto handle = find_operator<CombineSignature>("telens::combine_rows");
  return handle.call(x, places, weights);
}

at::Tensor row_products(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places) {
  static const auto handle = find_operator<ProductsSignature>("telens::row_products");
  return handle.call(x, y, places);
}

namespace {

at::Tensor spread_rows_meta(const at::Tensor& x, const at::Tensor& places,
                            const std::optional<at::Tensor>& weights, std::int64_t rows) {
  check_spread_rows(x, places, weights, rows);
  return at::empty({rows, x.size(1)}, x.options());
}

at::Tensor combine_rows_meta(const at::Tensor& x, const at::Tensor& places,
                             const std::optional<at::Tensor>& weights) {
  check_combine_rows(x, places, weights);
  return at::empty({places.size(0), x.size(1)}, x.options());
}

at::Tensor row_products_meta(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places) {
  check_row_products(x, y, places);
  return at::empty(places.sizes(), x.options().dtype(summed_dtype(x.scalar_type())));
}

}  // namespace
}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("spread_rows", telens::ops::spread_rows_meta);
  library.impl("combine_rows", telens::ops::combine_rows_meta);
  library.impl("row_products", telens::ops::row_products_meta);
}
