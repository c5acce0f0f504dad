#include "features/fake_quant.h"

#include <memory>

#include "core/ops/quantize.h"
#include "core/quantization/current_scaling.h"

namespace telens::features {

at::Tensor fake_quantize(const at::Tensor& x, FormatId format) {
  const at::Tensor scale = CurrentScalingQuantizer(format).scale_for(x);
  const at::Tensor codes = ops::quantize_fp8(x, scale, std::nullopt, format);
  return ops::dequantize_fp8(codes, scale.reciprocal(), format, x.scalar_type());
}

FakeQuant::FakeQuant(const config::FeatureEntry& entry)
    : ScheduledFeature(entry, {.modify = true, .disable_fp8_gemm = true}) {
  for (const Gemm gemm : kAllGemms) {
    for (const TensorName tensor : kAllTensors) {
      const config::Selection* chosen = selection(gemm, tensor);
      if (chosen == nullptr || !belongs_to(tensor, gemm)) continue;
      formats_[static_cast<std::size_t>(gemm)][static_cast<std::size_t>(tensor)] =
          FakeQuantOptions::from(chosen->parameters).format;
    }
  }
}

Operand FakeQuant::modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) {
  const std::optional<FormatId> format =
      formats_[static_cast<std::size_t>(call.gemm)][static_cast<std::size_t>(call.tensor_name)];
  return call.deliver(fake_quantize(call.tensor, format.value()).to(call.dtype));
}

FeatureRegistration fake_quant() {
  return {fake_quant_description(), [](const config::FeatureEntry& entry, FeatureServices&) {
            return std::make_unique<FakeQuant>(entry);
          }};
}

}  // namespace telens::features
