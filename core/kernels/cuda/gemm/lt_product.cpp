#include "core/kernels/cuda/gemm/lt_product.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/kernels/cuda/gemm/cublaslt.h"

namespace telens::cuda {
namespace {

// Returns true if dimension `inner` is contiguous in memory and lines do not overlap.
bool is_line_by_line(const at::Tensor& matrix, int inner) {
  const int outer = 1 - inner;
  return (matrix.stride(inner) == 1 || matrix.size(inner) == 1) &&
         (matrix.stride(outer) >= matrix.size(inner) || matrix.size(outer) == 1);
}

std::int64_t get_leading(const at::Tensor& matrix, int inner) {
  return std::max(matrix.stride(1 - inner), matrix.size(inner));
}

at::Tensor workspace_for(const LtGemm& gemm, const at::Device& device) {
  try {
    return at::empty({static_cast<std::int64_t>(kLtWorkspaceBytes)},
                     at::TensorOptions(device).dtype(at::kByte));
  } catch (const c10::OutOfMemoryError& error) {
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "gemm ", describe(gemm), ": no room for its ",
        kLtWorkspaceBytes >> 20,
        " MiB of workspace; use smaller batches or free memory: ", error.what_without_backtrace());
  }
}

}  // namespace

FormatId get_format(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return FormatId::bf16;
  return dtype == at::kHalf ? FormatId::fp16 : FormatId::fp32;
}

LtOperand get_operand(at::Tensor& matrix, FormatId format) {
  if (is_line_by_line(matrix, 1)) return {matrix.const_data_ptr(), format, get_leading(matrix, 1)};
  if (is_line_by_line(matrix, 0)) {
    return {matrix.const_data_ptr(), format, get_leading(matrix, 0), true};
  }
  matrix = matrix.contiguous();
  return {matrix.const_data_ptr(), format, matrix.size(1)};
}

at::Tensor dense_bias(const at::Tensor& bias) {
  constexpr std::uintptr_t kAlignment = 16;
  if (!bias.defined()) return bias;
  const at::Tensor dense = bias.contiguous();
  return is_aligned(dense.const_data_ptr(), kAlignment) ? dense : dense.clone();
}

bool try_product(const DeviceScope& scope, const LtGemm& gemm, const at::Device& device) {
  const at::Tensor workspace = workspace_for(gemm, device);
  return run_lt_gemm(gemm, device.index(), workspace.mutable_data_ptr(), scope.context().stream);
}

void run_product(const DeviceScope& scope, const LtGemm& gemm, const at::Device& device) {
  if (try_product(scope, gemm, device)) return;
  raise<UsageError>(
      "gemm {}: cuBLASLt has no algorithm for this product on this card; pass contiguous "
      "operands aligned to 16 bytes",
      describe(gemm));
}

at::Tensor bf16_product(const DeviceScope& scope, at::Tensor a, at::Tensor b) {
  const at::Tensor sums = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kFloat));
  run_product(scope,
              {.m = a.size(0),
               .n = b.size(0),
               .k = a.size(1),
               .a = get_operand(a, FormatId::bf16),
               .b = get_operand(b, FormatId::bf16),
               .out = sums.mutable_data_ptr(),
               .out_format = FormatId::fp32,
               .out_leading = b.size(0)},
              sums.device());
  return sums;
}

}  // namespace telens::cuda
