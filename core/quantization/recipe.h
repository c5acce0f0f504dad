// A recipe: format and scaling for each tensor of a layer, and the origin of its scales.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/formats/format_id.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"

namespace telens {

// The FP8 formats of a recipe. hybrid: E4M3 forward, E5M2 for gradients. _extra_state stores the
// numbers: append only.
enum class Fp8Format : std::uint8_t { e4m3, e5m2, hybrid };

std::string_view get_name(Fp8Format format);

// The tensor that a quantizer serves, in the order of the slots of amax histories: forward
// (Transformer Engine's GEMM1_INPUT, GEMM1_WEIGHT, GEMM1_OUTPUT), then backward (GRAD_OUTPUT1,
// GRAD_INPUT1).
enum class TensorRole : std::uint8_t { input, weight, output, grad_output, grad_input };
inline constexpr int kForwardRoles = 3;
inline constexpr int kBackwardRoles = 2;
inline constexpr int kRoles = kForwardRoles + kBackwardRoles;

constexpr bool is_backward(TensorRole role) { return role >= TensorRole::grad_output; }

// Returns Transformer Engine's name: "input", "weight", "output", "grad_output" or "grad_input".
std::string_view get_name(TensorRole role);

// The place where a recipe's quantizer is used.
struct QuantizerRole {
  TensorRole tensor;
  std::string_view module_type;  // "linear" or "grouped_linear"
  std::string_view layer;        // name in debug configurations; may be empty
};

// How one GEMM multiplies quantized operands (Transformer Engine's MMParams).
struct MMParams {
  // If false, a GPU may sum FP8 products in fewer bits than FP32 if that is faster. Hopper does so
  // for per-tensor scales, with an error of up to K/32 x 33 x 2^-13 x sum|a||b|, else as for K =
  // 128. Block formats, other GPUs and the CPU always sum as if this were true.
  bool use_split_accumulator = true;

  bool operator==(const MMParams&) const = default;
};

struct DelayedScaling;
class DelayedScalingState;

class TELENS_EXPORT Recipe {
 public:
  virtual ~Recipe() = default;

  // Returns the recipe's prefix in statistic names, such as "fp8_delayed_scaling".
  virtual std::string_view name() const = 0;

  // Returns the quantizer of a tensor of a layer. `state` contains the layer's amax history and
  // scales; nullptr if the recipe uses none.
  virtual std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                                    DelayedScalingState* state) const = 0;

  // Like make_quantizer(), for recipes that differ between layers. Returns nullptr if the GEMMs of
  // this tensor run in high precision.
  virtual std::shared_ptr<Quantizer> make_quantizer_for(const QuantizerRole& role,
                                                        DelayedScalingState* state) const {
    return make_quantizer(role.tensor, state);
  }

  // Disables stochastic rounding if the recipe uses it.
  virtual void round_to_nearest() {}

  // Returns nullptr if this is not delayed scaling.
  virtual const DelayedScaling* as_delayed_scaling() const { return nullptr; }

  FormatId get_format(TensorRole role) const;

  Fp8Format fp8_format = Fp8Format::hybrid;

  // Transformer Engine's defaults, also for recipes that lack these parameters there.
  MMParams fp8_gemm_fprop = {.use_split_accumulator = false};
  MMParams fp8_gemm_dgrad;
  MMParams fp8_gemm_wgrad;

  const MMParams& get_parameters(Gemm gemm) const;

  // Runs this GEMM of every layer in high precision.
  struct OverrideLinearPrecision {
    bool fprop = false;
    bool dgrad = false;
    bool wgrad = false;

    bool of(Gemm gemm) const;
  };
  OverrideLinearPrecision override_linear_precision;

  // If dgrad and wgrad run in high precision but fprop does not, they use the dequantized operands
  // of fprop instead of the values before the cast.
  bool dequantized_backward = false;

  // DotProductAttention runs in FP8 (core/modules/attention/fp8_attention.h).
  bool fp8_dpa = false;
  // MultiheadAttention's projections also reuse the FP8 output of the attention and the FP8
  // gradients of its inputs instead of casting them. Requires fp8_dpa.
  bool fp8_mha = false;
};

// Returns the role of a GEMM input: activation, weight or gradient.
constexpr TensorRole get_role(TensorName input) {
  switch (input) {
    case TensorName::activation:
      return TensorRole::input;
    case TensorName::weight:
      return TensorRole::weight;
    default:
      return TensorRole::grad_output;
  }
}

// The recipes and quantizers of the scaling schemes (core/formats/scheme.h). A new scheme adds a
// row to each table.

// Returns the recipe with default options.
std::shared_ptr<Recipe> default_recipe(RecipeId id);
// Returns the recipe with this Recipe::name(). recipe_names() lists all. Throws UsageError for an
// unknown name.
TELENS_EXPORT std::shared_ptr<Recipe> default_recipe(std::string_view name);
TELENS_EXPORT std::vector<std::string> recipe_names();

// Returns a quantizer with this tensor's format, scaling, options and orientations. Per-tensor
// scales come from the amax of the tensor that it quantizes.
TELENS_EXPORT std::shared_ptr<Quantizer> quantizer_like(const QuantizedTensor& tensor);

}  // namespace telens
