#include "features/fake_quant/fake_quant.h"

#include <memory>

#include "core/ops/quantize.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/recipe.h"
#include "features/builtin_features.h"
#include "hooks/libtorch/block_quantizers.h"

namespace telens::features {

namespace {

// Requires the same as a layer under the recipe: features in multiples, any number of tokens.
void check_blocks(const at::Tensor& x, const FakeQuantOptions& options, std::int64_t alignment,
                  Gemm gemm, TensorName tensor) {
  const bool has_tokens = tensor != TensorName::weight && tensor != TensorName::wgrad;
  const at::Tensor matrix = flattened(x);
  if ((has_tokens || matrix.size(0) % alignment == 0) && matrix.size(1) % alignment == 0) return;
  raise<ShapeError>(
      "the {} of {} has shape {}, as a matrix [{}, {}]; {} needs its {} divisible by {}; choose "
      "such features, or take FP8E4M3 or FP8E5M2 for this tensor, which take any shape",
      telens::get_name(tensor), telens::get_name(gemm), c10::str(x.sizes()), matrix.size(0),
      matrix.size(1), options.name(), has_tokens ? "columns" : "rows and columns", alignment);
}

}  // namespace

at::Tensor fake_quantize(const at::Tensor& x, FormatId format) {
  const at::Tensor scale = CurrentScalingQuantizer(format).scale_for(x);
  const at::Tensor codes = ops::quantize_fp8(x, scale, std::nullopt, format);
  return ops::dequantize_fp8(codes, scale.reciprocal(), format, x.scalar_type());
}

at::Tensor fake_quantize(const at::Tensor& x, const FakeQuantOptions& options, Gemm gemm,
                         TensorName tensor) {
  if (!options.blocks) return fake_quantize(x, options.format);
  if (x.numel() == 0) return x;
  const auto quantizer = default_block_quantizer(*options.blocks, options.format, get_role(tensor));
  check_blocks(x, options, quantizer->alignment(), gemm, tensor);
  const bool rowwise = gemm == get_gemms(tensor).first;
  return quantizer->quantize(x, {.rowwise = rowwise, .columnwise = !rowwise}).dequantize();
}

FakeQuant::FakeQuant(const config::FeatureEntry& entry)
    : ScheduledFeature(entry, {.modify = true, .disable_fp8_gemm = true}) {
  for (const Gemm gemm : kAllGemms) {
    for (const TensorName tensor : kAllTensors) {
      const config::Selection* chosen = selection(gemm, tensor);
      if (chosen == nullptr || !belongs_to(tensor, gemm)) continue;
      options_[static_cast<std::size_t>(gemm)][static_cast<std::size_t>(tensor)] =
          chosen->options_as<FakeQuantOptions>();
    }
  }
}

Operand FakeQuant::modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) {
  const auto& options =
      options_[static_cast<std::size_t>(call.gemm)][static_cast<std::size_t>(call.tensor_name)];
  return call.deliver(
      fake_quantize(call.tensor, options.value(), call.gemm, call.tensor_name).to(call.dtype));
}

FeatureRegistration fake_quant() {
  return {fake_quant_description(), [](const config::FeatureEntry& entry, FeatureServices&) {
            return std::make_unique<FakeQuant>(entry);
          }};
}

}  // namespace telens::features
