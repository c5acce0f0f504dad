#include "core/gemm/gemm.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <atomic>

#include "core/ops/gemm.h"

namespace telens {
namespace {

std::atomic<std::uint64_t> quantized_count{0};
std::atomic<std::uint64_t> high_precision_count{0};

struct OperandNames {
  TensorName a;
  TensorName b;
};

OperandNames operands_of(Gemm gemm) {
  switch (gemm) {
    case Gemm::fprop:
      return {TensorName::activation, TensorName::weight};
    case Gemm::dgrad:
      return {TensorName::gradient, TensorName::weight};
    case Gemm::wgrad:
      break;
  }
  return {TensorName::gradient, TensorName::activation};
}

void check_pair(const GemmDescription& description) {
  const OperandNames names = operands_of(description.gemm);
  const bool a_quantized = is_quantized(description.a);
  if (a_quantized != is_quantized(description.b)) {
    raise<UsageError>(
        "{}: {} got {} quantized and {} in high precision; both operands of a GEMM must come in "
        "the same kind of precision; let the feature that modifies one of them return the other "
        "kind, or modify both",
        description.layer, name_of(description.gemm), name_of(a_quantized ? names.a : names.b),
        name_of(a_quantized ? names.b : names.a));
  }
}

at::Tensor run_quantized(const GemmDescription& description, const QuantizedTensor& a,
                         const QuantizedTensor& b) {
  const OperandNames names = operands_of(description.gemm);
  if (a.mode != b.mode || (a.format == FormatId::e5m2 && b.format == FormatId::e5m2)) {
    raise<UsageError>(
        "{}: {} cannot multiply {} ({}, {} scaling) by {} ({}, {} scaling); expected one scaling "
        "mode, and at most one E5M2 operand",
        description.layer, name_of(description.gemm), name_of(names.a), name_of(a.format),
        name_of(a.mode), name_of(names.b), name_of(b.format), name_of(b.mode));
  }
  const QuantizedData& left = description.gemm == Gemm::wgrad ? a.columnwise : a.rowwise;
  const QuantizedData& right = description.gemm == Gemm::fprop ? b.rowwise : b.columnwise;
  if (!left.defined() || !right.defined()) {
    raise<UsageError>(
        "{}: {} needs its {} in the orientation that was not quantized or was dropped; keep both "
        "(update_usage, Quantizer::set_usage)",
        description.layer, name_of(description.gemm), name_of(left.defined() ? names.b : names.a));
  }
  quantized_count.fetch_add(1, std::memory_order_relaxed);
  return ops::gemm({left.codes, left.scale_inv, a.format}, {right.codes, right.scale_inv, b.format},
                   a.mode, description.bias, description.out_dtype);
}

at::Tensor run_plain(const GemmDescription& description, const at::Tensor& a, const at::Tensor& b) {
  high_precision_count.fetch_add(1, std::memory_order_relaxed);
  const auto cast = [&](const at::Tensor& tensor) { return tensor.to(description.out_dtype); };
  switch (description.gemm) {
    case Gemm::fprop:
      return description.bias.defined() ? at::addmm(description.bias, cast(a), cast(b).t())
                                        : at::mm(cast(a), cast(b).t());
    case Gemm::dgrad:
      return at::mm(cast(a), cast(b));
    case Gemm::wgrad:
      break;
  }
  return at::mm(cast(a).t(), cast(b));
}

}  // namespace

at::Tensor run_gemm(const GemmDescription& description) {
  check_pair(description);
  if (const auto* a = std::get_if<QuantizedTensor>(&description.a)) {
    return run_quantized(description, *a, std::get<QuantizedTensor>(description.b));
  }
  return run_plain(description, std::get<at::Tensor>(description.a),
                   std::get<at::Tensor>(description.b));
}

GemmCounts gemm_counts() {
  return {quantized_count.load(std::memory_order_relaxed),
          high_precision_count.load(std::memory_order_relaxed)};
}

}  // namespace telens
