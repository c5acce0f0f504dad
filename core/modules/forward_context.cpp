#include "core/modules/forward_context.h"

namespace telens {

bool ForwardContext::quantizes(Gemm gemm) const {
  if (!quantizes()) return false;
  const auto have_quantizers = [&](TensorRole a, TensorRole b) {
    return quantizers[a] != nullptr && quantizers[b] != nullptr;
  };
  const Recipe::OverrideLinearPrecision& high_precision = recipe->override_linear_precision;
  switch (gemm) {
    case Gemm::fprop:
      return !high_precision.fprop && have_quantizers(TensorRole::input, TensorRole::weight);
    case Gemm::dgrad:
      return !high_precision.dgrad && have_quantizers(TensorRole::grad_output, TensorRole::weight);
    case Gemm::wgrad:
      break;
  }
  return !high_precision.wgrad && have_quantizers(TensorRole::grad_output, TensorRole::input);
}

}  // namespace telens
