// NVFP4: E2M1 in blocks of 16 elements, with E4M3 block scales and an FP32 tensor scale.
#pragma once

#include <memory>

#include "core/quantization/block_quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

// The signs of the random Hadamard transform, Transformer Engine's constant: bit i negates row i of
// sixteen.
inline constexpr std::uint16_t kRandomHadamardSigns = 0xd7e8;

// Defaults to the training recipe of "Pretraining Large Language Models with NVFP4"
// (arXiv:2509.25149): weights in 16x16 blocks, operands of wgrad after a random Hadamard transform,
// gradients with stochastic rounding.
struct TELENS_EXPORT NVFP4BlockScaling final : Recipe {
  NVFP4BlockScaling() { fp8_format = Fp8Format::e4m3; }  // the block scales' format

  bool disable_rht = false;
  bool disable_stochastic_rounding = false;
  bool disable_2d_quantization = false;
  // Activations have one scale per row instead of one per tensor, and one per column as operands of
  // wgrad. Requires disable_rht.
  bool row_scaled_activation = false;

  // The forward tensors whose blocks are scaled to 4 or to 6, whichever has the smaller error
  // (core/ops/four_over_six_formula.h). Gradients are never scaled this way.
  enum class Scope : std::uint8_t { none, weights, activations, all };
  Scope four_over_six = Scope::none;
  Scope four_over_six_to_256 = Scope::all;  // the largest scale is 256 instead of 448
  bool four_over_six_squares_errors = false;

  // Throws UsageError if four_over_six or row_scaled_activation and the random Hadamard transform
  // apply to the same tensor.
  void check() const;

  std::string_view name() const override { return "nvfp4"; }
  void round_to_nearest() override { disable_stochastic_rounding = true; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

// Stochastic rounding draws one key per tensor from torch's default generator of the tensor's
// device. Without it, nothing is drawn.
class TELENS_EXPORT NVFP4Quantizer final : public BlockQuantizer {
 public:
  explicit NVFP4Quantizer(BlockOptions options = {}, Usage usage = {})
      : BlockQuantizer(FormatId::e2m1, options, usage) {}

  // Accepts any number of rows. The columnwise codes of a transformed tensor are padded with zero
  // rows to a multiple of 16.
  ScalingMode mode() const override { return ScalingMode::nvfp4; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;
  // Requires a number of rows that the transform supports.
  ops::BlockCodesPair quantize_whole(const at::Tensor& x,
                                     const ops::Orientations& orientations) const;
  // Returns the rowwise and columnwise amaxes over the group; undefined without a group.
  at::Tensor reduced_amaxes(const at::Tensor& x, const ops::Orientations& orientations) const;
};

}  // namespace telens
