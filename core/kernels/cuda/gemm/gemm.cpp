// The quantized GEMM on CUDA: cuBLASLt's product of the codes if card and shapes support it.
// Otherwise products of BF16 operands with FP32 sums, exact as on the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/cublaslt.h"
#include "core/kernels/cuda/gemm/gemm_emulation.h"
#include "core/kernels/cuda/gemm/gemm_native.h"
#include "core/kernels/cuda/gemm/lt_product.h"
#include "core/ops/gemm.h"
#include "core/ops/tensor_utils.h"

namespace telens::cuda {
namespace {

using ops::GemmOperand;

// 10 x major + minor.
int get_capability(const at::Device& device) {
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check_launch("gemm", cudaDeviceGetAttribute(&value, name, device.index()));
    return value;
  };
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
         attribute(cudaDevAttrComputeCapabilityMinor);
}

GemmPlan make_plan(const GemmOperand& a, const GemmOperand& b, at::ScalarType out_dtype) {
  return plan_gemm({get_capability(a.codes.device()), a.format, a.mode, b.format, b.mode,
                    a.codes.size(0), b.codes.size(0), values_along_k(a), get_format(out_dtype),
                    a.power_of_2_scales && b.power_of_2_scales});
}

// The product for K = 0.
at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                         at::ScalarType out_dtype) {
  at::Tensor out = at::zeros({a.size(0), b.size(0)}, a.options().dtype(out_dtype));
  return bias.defined() ? out.add_(bias) : out;
}

// Returns FP32 sums before rounding.
at::Tensor emulated(const DeviceScope& scope, const GemmOperand& a, const GemmOperand& b,
                    const ops::GemmChoice& choice) {
  ops::report_gemm_choice(choice);
  return emulated_sums(a, b, [&](const at::Tensor& left, const at::Tensor& right) {
    return bf16_product(scope, left, right);
  });
}

void check_devices(const GemmOperand& a, const GemmOperand& b, const at::Tensor& other) {
  check_same_device(
      "gemm", {a.codes, a.scale_inv, a.tensor_scale, b.codes, b.scale_inv, b.tensor_scale, other});
}

bool is_over_nothing(const GemmOperand& a, const GemmOperand& b) {
  return a.codes.numel() == 0 || b.codes.numel() == 0;
}

at::Tensor gemm_cuda(const ops::GemmArguments& arguments) {
  const auto& [a, b, given_bias, out_dtype, split_accumulator] = arguments;
  check_devices(a, b, given_bias);
  const DeviceScope scope("gemm", a.codes);
  const at::Tensor bias = dense_bias(ops::bias_of_16_bits(given_bias));
  if (is_over_nothing(a, b)) return empty_product(a.codes, b.codes, bias, out_dtype);
  const GemmPlan plan = make_plan(a, b, out_dtype);
  if (!plan.native) {
    return with_bias(emulated(scope, a, b, plan.choice), bias, out_dtype);
  }
  at::Tensor out =
      at::empty({a.codes.size(0), b.codes.size(0)}, a.codes.options().dtype(out_dtype));
  if (!try_native(
          scope,
          {.plan = plan, .a = a, .b = b, .bias = bias, .fast_accumulation = !split_accumulator},
          out)) {
    return with_bias(emulated(scope, a, b, choice_without_algorithm(a.mode)), bias, out_dtype);
  }
  ops::report_gemm_choice(plan.choice);
  return out;
}

void gemm_accumulate_cuda(const ops::GemmAccumulateArguments& arguments) {
  const auto& [a, b, out, split_accumulator] = arguments;
  check_devices(a, b, out);
  const DeviceScope scope("gemm_accumulate", a.codes);
  if (is_over_nothing(a, b)) return;
  const GemmPlan plan = make_plan(a, b, at::kFloat);
  at::Tensor sum = out;
  if (!plan.native) {
    sum.add_(emulated(scope, a, b, plan.choice));
    return;
  }
  // A gradient that is a non-contiguous view, or whose address is not aligned to 16 bytes as FP8
  // products require, is accumulated in a second step.
  constexpr std::uintptr_t kAlignment = 16;
  const bool in_place = out.is_contiguous() && is_aligned(out.const_data_ptr(), kAlignment);
  const at::Tensor target = in_place ? out : at::empty(out.sizes(), out.options());
  if (!try_native(scope,
                  {.plan = plan,
                   .a = a,
                   .b = b,
                   .bias = {},
                   .accumulate = in_place,
                   .fast_accumulation = !split_accumulator},
                  target)) {
    sum.add_(emulated(scope, a, b, choice_without_algorithm(a.mode)));
    return;
  }
  ops::report_gemm_choice(plan.choice);
  if (!in_place) sum.add_(target);
}

std::vector<std::string> gemm_algorithms_cuda(const at::Tensor&) { return lt_algorithms(); }

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("gemm", TORCH_FN(telens::ops::gemm_schema<telens::cuda::gemm_cuda>));
  library.impl("gemm_accumulate",
               TORCH_FN(telens::ops::gemm_accumulate_schema<telens::cuda::gemm_accumulate_cuda>));
  library.impl("gemm_algorithms", TORCH_FN(telens::cuda::gemm_algorithms_cuda));
}
