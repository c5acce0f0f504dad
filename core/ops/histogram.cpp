#include "core/ops/histogram.h"

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"
#include "core/ops/histogram_layout.h"

namespace telens::ops {
namespace {

void check_counts(const char* operation, const at::Tensor& x, const at::Tensor& counts,
                  std::int64_t bins) {
  if (counts.scalar_type() != at::kLong || counts.numel() != bins || !counts.is_contiguous() ||
      counts.device() != x.device()) {
    raise<ShapeError>(
        "{}: counts is {} with {} elements on {}; expected contiguous Long with {} elements on {}",
        operation, c10::toString(counts.scalar_type()), counts.numel(), counts.device().str(), bins,
        x.device().str());
  }
}

at::Tensor zeros(std::int64_t bins, const at::Device& device) {
  return at::zeros({bins}, at::TensorOptions().dtype(at::kLong).device(device));
}

using Signature = void(const at::Tensor&, at::Tensor&);

}  // namespace

void check_exponent_histogram(const at::Tensor& x, const at::Tensor& counts) {
  check_high_precision("exponent_histogram", "x", x.scalar_type());
  check_counts("exponent_histogram", x, counts, kExponentBins);
}

void check_code_histogram(const at::Tensor& x, const at::Tensor& counts) {
  if (x.scalar_type() != at::kBFloat16 && x.scalar_type() != at::kHalf) {
    raise<ShapeError>(
        "code_histogram: x has dtype {}; expected BFloat16 or Half, whose codes are few enough to "
        "count; use exponent_histogram",
        c10::toString(x.scalar_type()));
  }
  check_counts("code_histogram", x, counts, kCodeBins);
}

void exponent_histogram(const at::Tensor& x, at::Tensor& counts) {
  static const auto handle = find_operator<Signature>("telens::exponent_histogram");
  handle.call(x, counts);
}

void code_histogram(const at::Tensor& x, at::Tensor& counts) {
  static const auto handle = find_operator<Signature>("telens::code_histogram");
  handle.call(x, counts);
}

at::Tensor empty_exponent_histogram(const at::Device& device) {
  return zeros(kExponentBins, device);
}
at::Tensor empty_code_histogram(const at::Device& device) { return zeros(kCodeBins, device); }

namespace {

void exponent_histogram_meta(const at::Tensor& x, at::Tensor& counts) {
  check_exponent_histogram(x, counts);
}

void code_histogram_meta(const at::Tensor& x, at::Tensor& counts) {
  check_code_histogram(x, counts);
}

}  // namespace
}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("exponent_histogram", telens::ops::exponent_histogram_meta);
  library.impl("code_histogram", telens::ops::code_histogram_meta);
}
