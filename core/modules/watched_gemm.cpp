#include "core/modules/watched_gemm.h"

#include "core/quantization/operand.h"
#include "core/quantization/role_of.h"

namespace telens {
namespace {

// A session that ends between the preparations of two operands leaves one that a feature has made
// beside one of another kind. Such a product is one of high precision.
at::Tensor run_watched_gemm_of(const GemmDescription& description, const RoutingPlan& plan) {
  const bool is_mixed = is_quantized(description.a) != is_quantized(description.b);
  if (!is_mixed || hook_points::ListenerCall(plan)) return run_gemm(description);
  const Operand a = plain_values(description.a), b = plain_values(description.b);
  const at::Tensor bias = description.bias;
  return run_gemm({.gemm = description.gemm,
                   .a = a,
                   .b = b,
                   .bias = bias,
                   .out_dtype = description.out_dtype,
                   .layer = description.layer,
                   .accumulate_into = description.accumulate_into,
                   .split_accumulator = description.split_accumulator,
                   .operand_dtype = description.operand_dtype});
}

}  // namespace

at::Tensor run_watched_gemm(const GemmDescription& description, LinearOperation::State& state,
                            const LayerPass& pass) {
  at::Tensor output =
      pass.plan ? run_watched_gemm_of(description, *pass.plan) : run_gemm(description);
  const bool observes = description.gemm != Gemm::fprop || !pass.recomputation;
  if (!pass.plan || !observes || !pass.plan->inspects(description.gemm)) [[likely]] {
    return output;
  }
  if (const hook_points::ListenerCall listener(*pass.plan); listener) {
    const auto [a, b] = operands_of(description.gemm);
    const auto quantizer_of = [&](TensorName name) {
      return pass.quantizes() ? pass.quantizers[role_of(name)].get() : nullptr;
    };
    listener->inspect_gemm(state.hooks, *pass.plan,
                           {.gemm = description.gemm,
                            .a_name = a,
                            .b_name = b,
                            .a = description.a,
                            .b = description.b,
                            .bias = description.bias,
                            .output = output,
                            .recipe = pass.quantizes() ? pass.recipe.get() : nullptr,
                            .a_quantizer = quantizer_of(a),
                            .b_quantizer = quantizer_of(b),
                            .split_accumulator = description.split_accumulator,
                            .choice = ops::newest_gemm_choice()});
  }
  return output;
}

}  // namespace telens
