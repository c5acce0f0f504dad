#include "core/modules/layer/fused_cast.h"

#include <ATen/ops/zeros.h>

#include <mutex>
#include <utility>
#include <vector>

#include "core/ops/torch_internals.h"
#include "core/quantization/recipe.h"

namespace telens {
namespace {

bool accesses(const RoutingPlan& plan, TensorName name) {
  const auto [first, second] = get_gemms(name);
  const auto accesses_for = [&](Gemm gemm) {
    return plan.modifies(gemm, name) || plan.inspects_quantized(gemm, name) ||
           plan.runs_in_high_precision(gemm);
  };
  return plan.inspects(name) || accesses_for(first) || accesses_for(second);
}

// Returns a zero that placeholders of one dtype and device share for the life of the process: a
// placeholder costs no kernel. Torch's anomaly detection may read it: the values are 0.
at::Tensor shared_zero(const at::Tensor& like) {
  // A fake tensor or another subclass requires a placeholder of its class, which must not be shared
  // with other callers.
  if (like.key_set().has(c10::DispatchKey::Python)) return at::zeros({1}, like.options());
  static std::mutex mutex;
  static auto* const zeros = new std::vector<at::Tensor>;  // outlives the devices' teardown
  const std::lock_guard lock(mutex);
  for (const at::Tensor& zero : *zeros) {
    if (zero.scalar_type() == like.scalar_type() && zero.device() == like.device()) return zero;
  }
  const ops::PlainTensors plain;
  return zeros->emplace_back(at::zeros({1}, like.options()));
}

}  // namespace

std::optional<ops::KnownScale> fused_cast_scale(const ForwardContext& context, TensorName name,
                                                bool first_needed, bool second_needed) {
  if (!context.quantizes() || (!first_needed && !second_needed)) return std::nullopt;
  if (context.plan && accesses(*context.plan, name)) return std::nullopt;
  const auto [first, second] = get_gemms(name);
  if ((first_needed && !context.quantizes(first)) ||
      (second_needed && !context.quantizes(second))) {
    return std::nullopt;
  }
  const Quantizer& quantizer = *context.quantizer(get_role(name));
  at::Tensor scale = quantizer.known_scale();
  if (!scale.defined()) return std::nullopt;
  return ops::KnownScale{.scale = std::move(scale),
                         .amax = quantizer.running_amax(),
                         .format = quantizer.format(),
                         .columnwise = second_needed};
}

at::Tensor placeholder(at::IntArrayRef sizes, const at::Tensor& like) {
  return shared_zero(like).expand(sizes);
}

at::Tensor placeholder_with(c10::intrusive_ptr<FusedGradient> gradient, at::IntArrayRef sizes,
                            const at::Tensor& like) {
  at::Tensor carrier = placeholder(sizes, like);
  carrier.unsafeGetTensorImpl()->set_backend_meta(std::move(gradient));
  return carrier;
}

const FusedGradient* fused_gradient(const at::Tensor& tensor) {
  return tensor.defined()
             ? dynamic_cast<const FusedGradient*>(tensor.unsafeGetTensorImpl()->get_backend_meta())
             : nullptr;
}

}  // namespace telens
