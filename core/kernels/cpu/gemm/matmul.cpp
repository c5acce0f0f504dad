// Products of unquantized operands on the CPU. Calls LibTorch's kernels without a second dispatch.
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

#include "core/ops/device.h"
#include "core/ops/gemm.h"
#include "core/ops/matmul.h"
#include "core/ops/tensor_utils.h"
#include "core/ops/torch_internals.h"

namespace telens {
namespace {

// A product of BF16 operands has a BF16 result in LibTorch. FP32 holds the operands' values
// exactly.
at::Tensor as_float(const at::Tensor& operand) {
  ops::report_gemm_choice({"FP32 GEMM", "the output is FP32"});
  return operand.to(at::kFloat);
}

// Returns the FP32 product of BF16 operands. `bias` is undefined or has any dtype.
at::Tensor product_in_fp32(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  ops::report_gemm_choice({"FP32 GEMM", "the processor has no BF16 products"});
  const at::Tensor left = a.to(at::kFloat);
  const at::Tensor right = b.to(at::kFloat);
  return bias.defined() ? at::cpu::addmm(bias.to(at::kFloat), left, right.t())
                        : at::cpu::mm(left, right.t());
}

at::Tensor matmul_cpu(const at::Tensor& a, const at::Tensor& b,
                      const std::optional<at::Tensor>& bias, at::ScalarType out_dtype) {
  ops::check_matmul(a, b, bias, out_dtype);
  if (a.scalar_type() != out_dtype) return matmul_cpu(as_float(a), as_float(b), bias, out_dtype);
  if (ops::multiplies_in_fp32(a)) {
    return product_in_fp32(a, b, ops::or_undefined(bias)).to(out_dtype);
  }
  return bias && bias->defined() ? at::cpu::addmm(*bias, a, ops::transposed_view(b))
                                 : at::cpu::mm(a, ops::transposed_view(b));
}

// Calls LibTorch's product for each part, on all threads, and writes directly into its rows of
// `out`. Nothing is split or joined.
void grouped_matmul_cpu(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                        at::IntArrayRef rows, const at::Tensor& out) {
  ops::check_grouped_matmul(a, b, bias, rows, out);
  ops::for_each_part(a, rows, out, [&](std::size_t part, const at::Tensor& from, at::Tensor to) {
    if (ops::multiplies_in_fp32(a)) {
      to.copy_(product_in_fp32(from, b[part], bias.empty() ? at::Tensor() : bias[part]));
      return;
    }
    const at::Tensor right = ops::transposed_view(b[part]);
    if (bias.empty()) {
      at::cpu::mm_out(to, from, right);
    } else {
      at::cpu::addmm_out(to, bias[part], from, right);
    }
  });
}

void matmul_accumulate_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  ops::check_matmul_accumulate(a, b, out);
  at::Tensor sum = out;
  at::cpu::addmm_out(sum, out, as_float(a), as_float(b).t());
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("matmul", telens::matmul_cpu);
  library.impl("grouped_matmul", telens::grouped_matmul_cpu);
  library.impl("matmul_accumulate", telens::matmul_accumulate_cpu);
}
