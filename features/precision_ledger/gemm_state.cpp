#include "features/precision_ledger/gemm_state.h"

#include <fmt/format.h>

#include "core/quantization/recipe.h"

namespace telens::features {
namespace {

Precision get_precision(const Operand& operand, at::ScalarType computed_in) {
  const auto* quantized = std::get_if<QuantizedTensor>(&operand);
  if (quantized == nullptr) return {get_element(computed_in), std::nullopt};
  return {telens::get_name(quantized->format), quantized->mode};
}

Precision get_requested_precision(const Quantizer* quantizer, at::ScalarType computed_in) {
  if (quantizer == nullptr) return {get_element(computed_in), std::nullopt};
  return {telens::get_name(quantizer->format()), quantizer->mode()};
}

TokenPadding get_padding(const InspectGemmCall& call) {
  const auto* a = std::get_if<QuantizedTensor>(&call.a);
  return a != nullptr ? token_padding(call.gemm, *a) : TokenPadding();
}

std::string get_words(const GemmOverlapNote& note) {
  std::string words = fmt::format("{}: {}", note.method, note.collective);
  if (note.parts > 1) words += fmt::format(" in {} parts", note.parts);
  if (!note.hindrance.empty()) words += fmt::format(", not now: {}", note.hindrance);
  return words;
}

Cause cause_in_recipe(const Recipe& recipe, Gemm gemm) {
  if (!recipe.override_linear_precision.of(gemm)) return Cause::not_in_recipe;
  return gemm != Gemm::fprop && recipe.dequantized_backward ? Cause::dequantized
                                                            : Cause::overridden;
}

OperandState operand_state(const InspectGemmCall& call, std::span<const Alteration> alterations,
                           TensorName tensor, const Operand& operand, const Quantizer* quantizer) {
  const at::ScalarType computed_in = call.output.scalar_type();
  OperandState state{.tensor = tensor,
                     .wished = get_requested_precision(quantizer, computed_in),
                     .ran = get_precision(operand, computed_in)};
  for (const Alteration& each : alterations) {
    if (each.gemm != call.gemm) continue;
    if (each.modified == tensor) {
      state.cause = Cause::modified;
      state.by = each.by;
      return state;  // outranks fp8_gemm_enabled
    }
    if (!each.modified && state.by == nullptr) {
      state.cause = Cause::disabled;
      state.by = each.by;
    }
  }
  if (state.by != nullptr) return state;
  if (is_quantized(operand)) {
    state.cause = state.is_fallback() ? Cause::stored : Cause::recipe;
  } else if (call.recipe == nullptr) {
    state.cause = Cause::no_recipe;
  } else {
    state.cause = cause_in_recipe(*call.recipe, call.gemm);
  }
  return state;
}

}  // namespace

std::string_view get_element(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "FP16";
    case at::kFloat:
      return "FP32";
    default:
      return "FP64";
  }
}

GemmState get_state(const InspectGemmCall& call, std::span<const Alteration> alterations) {
  return {.a = operand_state(call, alterations, call.a_name, call.a, call.a_quantizer),
          .b = operand_state(call, alterations, call.b_name, call.b, call.b_quantizer),
          .recipe = call.recipe == nullptr ? "none" : call.recipe->name(),
          .choice = call.choice,
          .output = call.output.scalar_type(),
          .padding = get_padding(call),
          .overlap = call.overlap == nullptr ? std::string() : get_words(*call.overlap),
          .overlapped_bytes = call.overlap == nullptr ? 0 : call.overlap->bytes};
}

std::string get_reason(const OperandState& state) {
  const auto feature = [&] {
    return fmt::format("{} in section `{}`", state.by->written_name, state.by->section);
  };
  switch (state.cause) {
    case Cause::recipe:
      break;
    case Cause::no_recipe:
      return "no recipe: it ran outside of fp8_autocast";
    case Cause::not_in_recipe:
      return "the recipe leaves an operand of this GEMM in high precision";
    case Cause::overridden:
      return "override_linear_precision of the recipe";
    case Cause::dequantized:
      return "backward_override='dequantized' of the recipe";
    case Cause::disabled:
      return feature();
    case Cause::modified:
      return fmt::format("{} modified the {}", feature(), telens::get_name(state.tensor));
    case Cause::stored:
      return "the weight is stored in this precision";
  }
  return "the recipe wants it so";
}

}  // namespace telens::features
