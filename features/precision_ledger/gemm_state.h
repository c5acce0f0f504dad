// One GEMM as it ran, as reported by the ledger.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "features/precision_ledger/precision_ledger_options.h"
#include "hooks/observer.h"

namespace telens::features {

// "BF16"
std::string_view get_element(DType dtype);

// The reason for an operand's precision.
enum class Cause : std::uint8_t {
  recipe,         // as requested by the recipe
  no_recipe,      // no recipe requests quantization
  not_in_recipe,  // the recipe lacks a quantizer for one of the operands
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

// Everything that the ledger reports about a GEMM. Compared in each iteration, written out when it
// changes.
struct GemmState {
  OperandState a, b;
  std::string_view recipe;  // Recipe::name(), a literal; "none" outside of fp8_autocast
  // Literals (ObservedGemm).
  std::string_view kernel = {};
  std::string_view kernel_reason = {};
  DType output = DType::bfloat16;
  ObservedPadding padding = {};
  // The partner and the method of the overlap; "" if the layer requests none.
  std::string overlap = {};
  std::int64_t overlapped_bytes = 0;  // sent by this rank; depends on the length of the batch

  // Padded tokens are compared by their multiple, so that a batch of another length is not a new
  // state.
  std::int64_t padding_multiple() const { return padding.needed() ? padding.multiple : 1; }

  bool operator==(const GemmState& other) const {
    return a == other.a && b == other.b && recipe == other.recipe && kernel == other.kernel &&
           kernel_reason == other.kernel_reason && output == other.output &&
           padding_multiple() == other.padding_multiple() && overlap == other.overlap;
  }
};

GemmState get_state(const ObservedGemm& call, std::span<const Alteration> alterations);

std::string get_reason(const OperandState& state);

}  // namespace telens::features
