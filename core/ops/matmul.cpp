#include "core/ops/matmul.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"
#include "core/ops/tensor_utils.h"

namespace telens::ops {
namespace {

void check_operands(std::string_view operation, const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(1)) {
    raise<ShapeError>("{}: operands have shapes {} and {}; expected [M, K] and [N, K]", operation,
                      c10::str(a.sizes()), c10::str(b.sizes()));
  }
  if (a.scalar_type() != b.scalar_type()) {
    raise<ShapeError>("{}: operands have dtypes {} and {}; expected one; convert one of them",
                      operation, c10::toString(a.scalar_type()), c10::toString(b.scalar_type()));
  }
  if (a.device() != b.device()) {
    raise<ShapeError>("{}: operands are on {} and {}; move one of them", operation,
                      a.device().str(), b.device().str());
  }
}

at::Tensor matmul_meta(const at::Tensor& a, const at::Tensor& b,
                       const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  check_matmul(a, b, bias, out_dtype);
  return at::empty({a.size(0), b.size(0)}, a.options().dtype(out_dtype));
}

void grouped_matmul_meta(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                         at::IntArrayRef rows, const at::Tensor& out) {
  check_grouped_matmul(a, b, bias, rows, out);
}

void matmul_accumulate_meta(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  check_matmul_accumulate(a, b, out);
}

}  // namespace

void check_matmul(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                  at::ScalarType out_dtype) {
  check_operands("matmul", a, b);
  if (a.scalar_type() != at::kDouble) check_high_precision("matmul", "operand", a.scalar_type());
  const bool widens = out_dtype == at::kFloat && a.scalar_type() != at::kDouble;
  if (out_dtype != a.scalar_type() && !widens) {
    raise<ShapeError>("matmul: out_dtype is {} for operands of {}; expected the operands' or Float",
                      c10::toString(out_dtype), c10::toString(a.scalar_type()));
  }
  if (bias && bias->defined() &&
      (bias->dim() != 1 || bias->size(0) != b.size(0) || bias->scalar_type() != out_dtype)) {
    raise<ShapeError>("matmul: bias has shape {} and dtype {}; expected [{}] and {}",
                      c10::str(bias->sizes()), c10::toString(bias->scalar_type()), b.size(0),
                      c10::toString(out_dtype));
  }
}

void check_grouped_matmul(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                          at::IntArrayRef rows, const at::Tensor& out) {
  if (b.empty() || b.size() != rows.size() || (!bias.empty() && bias.size() != b.size())) {
    raise<ShapeError>(
        "grouped_matmul: got {} operands, {} biases and {} numbers of rows; expected one "
        "operand, bias and number per part, or no biases",
        b.size(), bias.size(), rows.size());
  }
  for (std::size_t part = 0; part < b.size(); ++part) {
    check_matmul(a, b[part], bias.empty() ? at::Tensor() : bias[part], a.scalar_type());
  }
  const std::int64_t sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  if (sum != a.size(0) || std::ranges::any_of(rows, [](std::int64_t n) { return n < 0; })) {
    raise<ShapeError>("grouped_matmul: rows are {}; expected the {} of a, none below 0",
                      c10::str(rows), a.size(0));
  }
  const std::int64_t sizes[] = {a.size(0), b[0].size(0)};
  if (out.sizes() != at::IntArrayRef(sizes) || out.scalar_type() != a.scalar_type() ||
      out.device() != a.device() || !out.is_contiguous()) {
    raise<ShapeError>("grouped_matmul: out is {} of {} on {}; expected contiguous {} of {} on {}",
                      c10::str(out.sizes()), c10::toString(out.scalar_type()), out.device().str(),
                      c10::str(at::IntArrayRef(sizes)), c10::toString(a.scalar_type()),
                      a.device().str());
  }
}

void check_matmul_accumulate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  check_operands("matmul_accumulate", a, b);
  check_high_precision("matmul_accumulate", "operand", a.scalar_type());
  check_accumulated("matmul_accumulate", a, b, out);
}

void check_accumulated(std::string_view operation, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& out) {
  if (out.scalar_type() != at::kFloat || out.dim() != 2 || out.size(0) != a.size(0) ||
      out.size(1) != b.size(0)) {
    raise<ShapeError>("{}: out has shape {} and dtype {}; expected [{}, {}] and Float", operation,
                      c10::str(out.sizes()), c10::toString(out.scalar_type()), a.size(0),
                      b.size(0));
  }
  if (out.device() != a.device()) {
    raise<ShapeError>("{}: out is on {} and the operands on {}; move one of them", operation,
                      out.device().str(), a.device().str());
  }
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                  at::ScalarType out_dtype) {
  static const auto handle = find_operator<decltype(matmul_meta)>("telens::matmul");
  return handle.call(a, b, if_defined(bias), out_dtype);
}

void grouped_matmul(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                    at::IntArrayRef rows, const at::Tensor& out) {
  static const auto handle = find_operator<decltype(grouped_matmul_meta)>("telens::grouped_matmul");
  handle.call(a, b, bias, rows, out);
}

void matmul_accumulate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  static const auto handle =
      find_operator<decltype(matmul_accumulate_meta)>("telens::matmul_accumulate");
  handle.call(a, b, out);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("matmul", telens::ops::matmul_meta);
  library.impl("grouped_matmul", telens::ops::grouped_matmul_meta);
  library.impl("matmul_accumulate", telens::ops::matmul_accumulate_meta);
}
