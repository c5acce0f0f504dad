#include "features/precision_ledger/gemm_state.h"

#include <fmt/format.h>

namespace telens::features {
namespace {

Precision get_precision(const ObservedOperand& operand, DType computed_in) {
  if (!operand.is_quantized()) return {get_element(computed_in), std::nullopt};
  return {telens::get_name(operand.format()), operand.mode()};
}

Precision get_requested_precision(const std::optional<ObservedQuantizer>& quantizer,
                                  DType computed_in) {
  if (!quantizer) return {get_element(computed_in), std::nullopt};
  return {telens::get_name(quantizer->format), quantizer->mode};
}

std::string get_words(const GemmOverlapNote& note) {
  std::string words = fmt::format("{}: {}", note.method, note.collective);
  if (note.parts > 1) words += fmt::format(" in {} parts", note.parts);
  if (!note.hindrance.empty()) words += fmt::format(", not now: {}", note.hindrance);
  return words;
}

Cause cause_in_recipe(const ObservedRecipe& recipe, Gemm gemm) {
  if (!recipe.overridden[static_cast<std::size_t>(gemm)]) return Cause::not_in_recipe;
  return gemm != Gemm::fprop && recipe.dequantized_backward ? Cause::dequantized
                                                            : Cause::overridden;
}

OperandState operand_state(const ObservedGemm& call, std::span<const Alteration> alterations,
                           TensorName tensor, const ObservedOperand& operand,
                           const std::optional<ObservedQuantizer>& quantizer) {
  const DType computed_in = call.output.dtype();
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
  if (operand.is_quantized()) {
    state.cause = state.is_fallback() ? Cause::stored : Cause::recipe;
  } else if (!call.recipe) {
    state.cause = Cause::no_recipe;
  } else {
    state.cause = cause_in_recipe(*call.recipe, call.gemm);
  }
  return state;
}

}  // namespace

std::string_view get_element(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return "BF16";
    case DType::float16:
      return "FP16";
    case DType::float32:
      return "FP32";
    default:
      return "FP64";
  }
}

GemmState get_state(const ObservedGemm& call, std::span<const Alteration> alterations) {
  return {.a = operand_state(call, alterations, call.a_name, call.a, call.a_quantizer),
          .b = operand_state(call, alterations, call.b_name, call.b, call.b_quantizer),
          .recipe = call.recipe ? call.recipe->name : "none",
          .kernel = call.kernel,
          .kernel_reason = call.kernel_reason,
          .output = call.output.dtype(),
          .padding = call.padding(),
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
