// Products of unquantized operands on CUDA, by cuBLASLt, in the operands' memory layout.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/cublaslt.h"
#include "core/kernels/cuda/gemm/tf32.h"
#include "core/ops/gemm.h"
#include "core/ops/matmul.h"
#include "core/ops/tensor_utils.h"

namespace telens::cuda {
namespace {

// FP32 operands are multiplied in FP32 unless torch's setting allows TF32.
bool takes_tf32(const at::Tensor& a) {
  if (a.scalar_type() != at::kFloat || !allows_tf32()) return false;
  ops::report_gemm_choice({"FP32 GEMM in TF32", "torch's settings allow TF32"});
  return true;
}

// out: contiguous.
void multiply_into(const DeviceScope& scope, at::Tensor a, at::Tensor b, const at::Tensor& bias,
                   const at::Tensor& out, bool accumulate) {
  const FormatId format = get_format(a.scalar_type());
  LtGemm gemm{.m = a.size(0),
              .n = b.size(0),
              .k = a.size(1),
              .a = get_operand(a, format),
              .b = get_operand(b, format),
              .out = out.mutable_data_ptr(),
              .out_format = get_format(out.scalar_type()),
              .out_leading = out.size(1),
              .accumulate = accumulate,
              .tf32 = takes_tf32(a)};
  if (bias.defined()) {
    gemm.bias = bias.const_data_ptr();
    gemm.bias_format = get_format(bias.scalar_type());
  }
  run_product(scope, gemm, out.device());
}

// LibTorch's product; FP64 needs no other.
at::Tensor double_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, a, b.t()) : at::mm(a, b.t());
}

at::Tensor matmul_cuda(const at::Tensor& a, const at::Tensor& b,
                       const std::optional<at::Tensor>& given_bias, at::ScalarType out_dtype) {
  ops::check_matmul(a, b, given_bias, out_dtype);
  check_same_device("matmul", {a, b, ops::or_undefined(given_bias)});
  if (a.scalar_type() == at::kDouble) {
    return double_product(a, b, ops::or_undefined(given_bias));
  }
  const DeviceScope scope("matmul", a);
  const at::Tensor bias = dense_bias(ops::or_undefined(given_bias));
  if (a.numel() == 0 || b.numel() == 0) {
    at::Tensor out = at::zeros({a.size(0), b.size(0)}, a.options().dtype(out_dtype));
    return bias.defined() ? out.add_(bias) : out;
  }
  const at::Tensor out = at::empty({a.size(0), b.size(0)}, a.options().dtype(out_dtype));
  multiply_into(scope, a, b, bias, out, false);
  return out;
}

// Runs one product after the other, each into its rows.
void grouped_matmul_cuda(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                         at::IntArrayRef rows, const at::Tensor& out) {
  ops::check_grouped_matmul(a, b, bias, rows, out);
  check_same_device("grouped_matmul", {a, out});
  const DeviceScope scope("grouped_matmul", a);
  ops::for_each_part(a, rows, out, [&](std::size_t part, const at::Tensor& from, at::Tensor to) {
    const at::Tensor added = bias.empty() ? at::Tensor() : bias[part];
    check_same_device("grouped_matmul", {a, b[part], added});
    if (a.scalar_type() == at::kDouble || from.numel() == 0 || to.numel() == 0) {
      to.copy_(matmul_cuda(from, b[part], added, to.scalar_type()));
    } else {
      multiply_into(scope, from, b[part], dense_bias(added), to, false);
    }
  });
}

void matmul_accumulate_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  ops::check_matmul_accumulate(a, b, out);
  check_same_device("matmul_accumulate", {a, b, out});
  if (a.numel() == 0 || b.numel() == 0) return;
  const DeviceScope scope("matmul_accumulate", a);
  // A gradient that is a non-contiguous view is accumulated in a second step.
  if (out.is_contiguous()) {
    multiply_into(scope, a, b, {}, out, true);
    return;
  }
  const at::Tensor product = at::empty(out.sizes(), out.options());
  multiply_into(scope, a, b, {}, product, false);
  at::Tensor sum = out;
  sum.add_(product);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("matmul", TORCH_FN(telens::cuda::matmul_cuda));
  library.impl("grouped_matmul", TORCH_FN(telens::cuda::grouped_matmul_cuda));
  library.impl("matmul_accumulate", TORCH_FN(telens::cuda::matmul_accumulate_cuda));
}
