#include "core/modules/layer/gemm_with_hooks.h"

#include <utility>

#include "core/modules/layer/overlap.h"
#include "core/quantization/quantized_payload.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/recipe.h"

namespace telens {
namespace {

// If a session ends while the operands are built, one may come from a feature and the other from
// the recipe. Such a product runs in high precision.
GemmResult run_watched(const GemmDescription& description, const RoutingPlan& plan) {
  const bool is_mixed = is_quantized(description.a) != is_quantized(description.b);
  if (!is_mixed || hook_points::ListenerCall(plan)) return run_gemm(description);
  const Operand a = plain_values(description.a), b = plain_values(description.b);
  return run_gemm({.gemm = description.gemm,
                   .a = a,
                   .b = b,
                   .bias = description.bias,
                   .out_dtype = description.out_dtype,
                   .layer = description.layer,
                   .accumulate_into = description.accumulate_into,
                   .split_accumulator = description.split_accumulator,
                   .operand_dtype = description.operand_dtype});
}

void inspect_gemm(GemmLayer& layer, const ForwardContext& context,
                  const GemmDescription& description, const GemmResult& result,
                  const GemmOverlapNote* overlap, HookListener& listener) {
  const auto [a, b] = get_operands(description.gemm);
  listener.inspect_gemm(layer.hooks, *context.plan,
                        {.gemm = description.gemm,
                         .a_name = a,
                         .b_name = b,
                         .a = description.a,
                         .b = description.b,
                         .bias = description.bias,
                         .output = result.output,
                         .recipe = context.quantizes() ? context.recipe.get() : nullptr,
                         .a_quantizer = context.quantizer(get_role(a)),
                         .b_quantizer = context.quantizer(get_role(b)),
                         .split_accumulator = description.split_accumulator,
                         .choice = result.choice,
                         .overlap = overlap});
}

TensorName get_output(Gemm gemm) {
  switch (gemm) {
    case Gemm::fprop:
      return TensorName::output;
    case Gemm::dgrad:
      return TensorName::dgrad;
    case Gemm::wgrad:
      break;
  }
  return TensorName::wgrad;
}

bool has(const NotedGemm& noted, OverlapKind kind) {
  return is_inspected(noted.context, noted.gemm) && noted.parallel.overlap &&
         noted.parallel.overlap->kind(noted.gemm) == kind;
}

}  // namespace

bool has_output_hooks(const ForwardContext& context, Gemm gemm) {
  if (!context.plan) return false;
  const TensorName name = get_output(gemm);
  return context.plan->modifies(gemm, name) ||
         (!context.recomputation && context.plan->inspects(name));
}

at::Tensor run_output_hooks(GemmLayer& layer, const ForwardContext& context, Gemm gemm,
                            const at::Tensor& bias, at::Tensor output) {
  if (!has_output_hooks(context, gemm)) return output;
  const RoutingPlan& plan = *context.plan;
  const hook_points::ListenerCall listener(plan);
  if (!listener) return output;  // the session has ended
  const TensorName name = get_output(gemm);
  if (plan.modifies(gemm, name)) {
    const Operand modified = listener->modify_tensor(layer.hooks, plan,
                                                     {.gemm = gemm,
                                                      .tensor_name = name,
                                                      .tensor = output,
                                                      .default_quantizer = nullptr,
                                                      .dtype = output.scalar_type()});
    output = (is_quantized(modified) ? std::get<QuantizedTensor>(modified).dequantize()
                                     : std::get<at::Tensor>(modified))
                 .to(output.scalar_type());
  }
  if (!context.recomputation && plan.inspects(name)) {
    listener->inspect_tensor(layer.hooks, plan,
                             {.tensor_name = name,
                              .tensor = &output,
                              .rowwise = nullptr,
                              .columnwise = nullptr,
                              .quantizer = nullptr,
                              .tensor_parallel = layer.hooks.tensor_parallel(),
                              .bias = bias.defined() ? &bias : nullptr,
                              .replicated = layer.parallel.replicates(name),
                              .summed = layer.parallel.sums(name)});
  }
  return output;
}

bool is_inspected(const ForwardContext& context, Gemm gemm) {
  return context.plan && !context.recomputation && context.plan->inspects(gemm);
}

at::Tensor gemm_with_inspection(GemmLayer& layer, const ForwardContext& context,
                                const GemmDescription& description,
                                const GemmOverlapNote* overlap) {
  if (!context.plan) return run_gemm(description).output;
  GemmResult result = run_watched(description, *context.plan);
  const hook_points::ListenerCall listener(*context.plan);
  if (listener && is_inspected(context, description.gemm)) {
    inspect_gemm(layer, context, description, result, overlap, *listener);
  }
  return std::move(result.output);
}

at::Tensor gemm_with_hooks(GemmLayer& layer, const ForwardContext& context,
                           const GemmDescription& description, const GemmOverlapNote* overlap) {
  at::Tensor output = gemm_with_inspection(layer, context, description, overlap);
  if (description.accumulate_into.defined()) return output;
  return run_output_hooks(layer, context, description.gemm, description.bias, std::move(output));
}

// With per-tensor scaling the consumer transposes the codes itself.
at::Tensor quantized_output(const at::Tensor& output, at::IntArrayRef sizes,
                            const Quantizer& quantizer, bool trains) {
  const bool both = trains && quantizer.mode() != ScalingMode::tensor;
  QuantizedTensor codes = quantizer.quantize(output, {.rowwise = true, .columnwise = both});
  at::Tensor values = codes.dequantize().view(sizes);
  return attach_quantized(std::move(values), std::move(codes));
}

std::optional<GemmOverlapNote> NotedGemm::of_gathered_values(std::int64_t bytes) const {
  if (!has(*this, OverlapKind::gather)) return std::nullopt;
  return GemmOverlapNote{.method = get_name(OverlapMethod::ring_exchange),
                         .collective = get_gather(gemm),
                         .bytes = bytes,
                         .hindrance = "scale blocks span two ranks"};
}

std::optional<GemmOverlapNote> NotedGemm::beside(std::int64_t bytes) const {
  if (!has(*this, OverlapKind::beside)) return std::nullopt;
  const bool row = parallel.mode == ParallelMode::row;
  const bool watched_sum = gemm == Gemm::wgrad && !row && has_output_hooks(context, Gemm::dgrad);
  return GemmOverlapNote{.method = get_name(row ? OverlapMethod::external : OverlapMethod::bulk),
                         .collective = row                   ? get_gather(Gemm::dgrad)
                                       : gemm == Gemm::dgrad ? get_gather(Gemm::fprop)
                                                             : get_scatter(Gemm::dgrad),
                         .bytes = bytes,
                         .hindrance = watched_sum ? "the sum is watched" : ""};
}

}  // namespace telens
