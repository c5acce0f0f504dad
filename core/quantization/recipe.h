// A recipe: which format and scaling each tensor of a layer gets, and how scales come about.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/formats/format_id.h"
#include "core/quantization/quantizer.h"

namespace telens {

// The FP8 formats of a recipe. hybrid: E4M3 forward, E5M2 for gradients. The order is part of the
// bytes of _extra_state: append only.
enum class Fp8Format : std::uint8_t { e4m3, e5m2, hybrid };

std::string_view get_name(Fp8Format format);

// The tensor of a layer that a quantizer serves. The order is that of the slots of amax histories:
// first those of the forward pass (Transformer Engine's GEMM1_INPUT, GEMM1_WEIGHT, GEMM1_OUTPUT),
// then those of the backward pass (GRAD_OUTPUT1, GRAD_INPUT1).
enum class TensorRole : std::uint8_t { input, weight, output, grad_output, grad_input };
inline constexpr int kForwardRoles = 3;
inline constexpr int kBackwardRoles = 2;
inline constexpr int kRoles = kForwardRoles + kBackwardRoles;

constexpr bool is_backward(TensorRole role) { return role >= TensorRole::grad_output; }

// "input", "weight", "output", "grad_output", "grad_input": Transformer Engine's names.
std::string_view get_name(TensorRole role);

// The place of a quantizer that a recipe makes.
struct QuantizerRole {
  TensorRole tensor;
  std::string_view module_type;  // "linear", or "grouped_linear": one of many
  std::string_view layer;        // its name in debug configurations; empty if it has none
};

// How one kind of GEMM of quantized operands is computed (Transformer Engine's MMParams).
struct MMParams {
  // false: a GPU may add products of FP8 in fewer bits than FP32's where that is faster, as Hopper
  // does under one scale a tensor (error up to K/32 x 33 x 2^-13 x sum|a||b|; else as for K = 128).
  // Products of block formats, other cards and the CPU always sum as if it were true.
  bool use_split_accumulator = true;

  bool operator==(const MMParams&) const = default;
};

struct DelayedScaling;
class DelayedScalingState;

class TELENS_EXPORT Recipe {
 public:
  virtual ~Recipe() = default;

  // The recipe's prefix in statistic names: "fp8_delayed_scaling", "fp8_current_scaling", ...
  virtual std::string_view name() const = 0;

  // The quantizer of one tensor of one layer. `state` is the layer's amax history and scales, for
  // recipes that have_state(); nullptr for others.
  virtual std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                                    DelayedScalingState* state) const = 0;

  // The same for a recipe that tells layers apart, which others do not. nullptr: the GEMMs of this
  // tensor run in high precision.
  virtual std::shared_ptr<Quantizer> make_quantizer_for(const QuantizerRole& role,
                                                        DelayedScalingState* state) const {
    return make_quantizer(role.tensor, state);
  }

  // Switches random rounding off, for a recipe that has it.
  virtual void round_to_nearest() {}

  // Not nullptr for the recipe whose scales come from earlier iterations.
  virtual const DelayedScaling* as_delayed_scaling() const { return nullptr; }

  FormatId get_format(TensorRole role) const;

  Fp8Format fp8_format = Fp8Format::hybrid;

  // Transformer Engine's defaults, for recipes that have no such parameters there as well.
  MMParams fp8_gemm_fprop = {.use_split_accumulator = false};
  MMParams fp8_gemm_dgrad;
  MMParams fp8_gemm_wgrad;

  const MMParams& get_parameters(Gemm gemm) const;

  // Run the GEMM of this name in high precision, layer by layer all the same.
  struct OverrideLinearPrecision {
    bool fprop = false;
    bool dgrad = false;
    bool wgrad = false;

    bool of(Gemm gemm) const;
  };
  OverrideLinearPrecision override_linear_precision;

  // Where dgrad and wgrad run in high precision and fprop does not, they multiply what fprop
  // multiplied: the values of its codes, not those before their casts.
  bool dequantized_backward = false;

  // DotProductAttention casts its tensors to FP8 (core/modules/attention/fp8_attention.h).
  bool fp8_dpa = false;
  // And MultiheadAttention's projections take the codes that it made of its output and of the
  // gradients of its inputs, without a cast of their own. Needs fp8_dpa.
  bool fp8_mha = false;
};

}  // namespace telens
