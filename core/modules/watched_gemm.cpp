#include "core/modules/watched_gemm.h"

#include "core/quantization/role_of.h"

namespace telens {

at::Tensor run_watched_gemm(const GemmDescription& description, LinearOperation::State& state,
                            const LayerPass& pass) {
  at::Tensor output = run_gemm(description);
  const bool observes = description.gemm != Gemm::fprop || !pass.recomputation;
  if (!pass.plan || !observes || !pass.plan->inspects(description.gemm)) [[likely]] {
    return output;
  }
  if (HookListener* listener = hook_points::listener_of(*pass.plan)) {
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
