// One GEMM as it ran, as the ledger tells of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/ops/gemm_choice.h"
#include "core/quantization/token_padding.h"
#include "features/precision_ledger/precision_ledger_options.h"
#include "hooks/feature.h"

namespace telens::features {

// "BF16"
std::string_view get_element(at::ScalarType dtype);

// Why an operand is what it is.
enum class Cause : std::uint8_t {
  recipe,         // as the recipe wants it
  no_recipe,      // no recipe asks for quantization
  not_in_recipe,  // the recipe has no quantizer for one of the operands
  overridden,     // override_linear_precision
  dequantized,    // backward_override="dequantized"
  disabled,       // a feature answered false to fp8_gemm_enabled
  modified,       // by a feature
  stored,         // a weight that is stored in low precision
};

struct OperandState {
  TensorName tensor = TensorName::activation;
  Precision wished;
  Precision ran;
  Cause cause = Cause::recipe;
  const config::FeatureEntry* by = nullptr;  // the entry that disabled or modified it

  bool is_fallback() const { return wished != ran; }
  bool operator==(const OperandState&) const = default;
};

// Everything the ledger tells about one GEMM: compared in each iteration, spelled out when it has
// changed.
struct GemmState {
  OperandState a, b;
  std::string_view recipe;  // Recipe::name(), a literal; "none" outside of fp8_autocast
  ops::GemmChoice choice;
  at::ScalarType output = at::kBFloat16;
  TokenPadding padding;
  std::string overlap = {};           // with what, and how; "": the layer has asked for none
  std::int64_t overlapped_bytes = 0;  // that this rank sends; batches of other lengths send others

  // Padded tokens are compared by their multiple: batches of other lengths are no new state.
  std::int64_t padding_multiple() const { return padding.needed() ? padding.multiple : 1; }

  bool operator==(const GemmState& other) const {
    return a == other.a && b == other.b && recipe == other.recipe &&
           choice.kernel == other.choice.kernel && choice.reason == other.choice.reason &&
           output == other.output && padding_multiple() == other.padding_multiple() &&
           overlap == other.overlap;
  }
};

GemmState get_state(const InspectGemmCall& call, std::span<const Alteration> alterations);

std::string get_reason(const OperandState& state);

}  // namespace telens::features
